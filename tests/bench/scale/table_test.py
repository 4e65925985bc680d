"""The table of bench/scale/scale.py."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../bench/scale"))
sys.dont_write_bytecode = True
import scale  # noqa: E402


def row(name, ranks, time, messages=0):
    return {"name": f"scale/{name}/ranks:{ranks}", "ranks": ranks, "real_time": time,
            "root_messages": messages}


class Table(unittest.TestCase):
    def test_a_logarithm_adds_the_same_with_each_doubling(self):
        self.assertEqual(scale.growth({16: 10.0, 32: 15.0, 64: 20.0}), ("2.0x", "5.0, 5.0"))
        self.assertEqual(scale.growth({16: 10.0, 32: 20.0, 128: 80.0}), ("8.0x", "10.0, 30.0"))
        self.assertEqual(scale.growth({16: 10.0}), ("", ""))

    def test_what_was_not_simulated_is_left_empty(self):
        text = scale.table([row("hora/cached", 16, 10.0, 2), row("hora/cached", 1024, 40.0, 14),
                            row("linear/negotiation", 1024, 400.0, 2046)])
        self.assertIn("| us | 16 | 1,024 |", text)
        self.assertIn("| `linear/negotiation` |  | 400.0 |", text)
        self.assertIn("| linear over cached |  | 10.0x |", text)
        self.assertIn("| messages of rank 0, `hora/cached` | 2 | 14 |", text)
        self.assertNotIn("flat_ring", text)


if __name__ == "__main__":
    unittest.main()
