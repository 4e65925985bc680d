"""The model of bench/scale/forecast, on values whose results are known."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

FOLDER = os.path.join(os.path.dirname(__file__), "../../../bench/scale/forecast")
sys.path.insert(0, FOLDER)
sys.dont_write_bytecode = True
import forecast  # noqa: E402
import measured_step  # noqa: E402
import model  # noqa: E402

MIB = 1 << 20
TRACE = {
    "what": "a network, some contender",
    "backward_begin_ms": 30.0,
    "backward_end_ms": 90.0,
    "step_ms": 100.0,
    "wrapper_ms": 0.0,
    "buckets": [{"bytes": 20 * MIB, "ready_ms": 60.0}, {"bytes": 20 * MIB, "ready_ms": 90.0}],
    "contention": {"2": 1.1},
}
NETWORK = {
    "nodes": 1,
    "ranks_per_node": 1,
    "cores_per_node": 8,
    "link_gbit": 8.0,
    "latency_us": 10.0,
    "message_us": 0.0,
    "memory_gb_s": 10.0,
    "pass_uses_cores": False,
}


def at(**changes):
    return dict(NETWORK, **changes)


class Forecast(unittest.TestCase):
    def test_one_rank_alone_takes_the_measured_step(self):
        step = model.forecast(TRACE, NETWORK)
        self.assertEqual(step["step_ms"], 100.0)
        self.assertEqual(step["efficiency"], 1.0)
        self.assertEqual(step["hidden_share"], 1.0)

    def test_the_wrapper_costs_as_much_alone(self):
        self.assertEqual(model.forecast(dict(TRACE, wrapper_ms=2.0), NETWORK)["step_ms"], 102.0)

    def test_contention_and_shared_cores_lengthen_the_computation(self):
        self.assertAlmostEqual(model.compute_factor(TRACE, at(ranks_per_node=2)), 1.1)
        shared = at(ranks_per_node=4, cores_per_node=2)
        self.assertAlmostEqual(model.compute_factor(TRACE, shared), 2 * 1.1)
        self.assertAlmostEqual(model.compute_factor(TRACE, at(ranks_per_node=8)), 1.0)

    def test_a_node_moves_two_bytes_for_each_byte_and_rank(self):
        self.assertAlmostEqual(model.node_pass_ms(10_000_000, at(ranks_per_node=2)), 4.0)
        self.assertEqual(model.node_pass_ms(10_000_000, NETWORK), 0.0)

    def test_the_link_carries_what_the_bound_says(self):
        # 8 Gbit/s are 10^6 bytes a ms; half of twice the bytes between two nodes.
        self.assertAlmostEqual(model.link_ms(1_000_000, at(nodes=2)), 1.02)
        self.assertAlmostEqual(model.link_ms(1_000_000, at(nodes=4)), 1.52)

    def test_many_small_messages_bound_the_link(self):
        slow = at(nodes=1001, message_us=1.0, latency_us=0.0)
        self.assertAlmostEqual(model.link_ms(MIB, slow), 2 * 1000 * 2 / 1e3)
        self.assertAlmostEqual(model.link_ms(40 * MIB, dict(slow, link_gbit=1e6)), 2 * 2 * 1000 * 2 / 1e3)

    def test_chunks_grow_with_the_nodes(self):
        # The same values as in tests/core/plan/plan_test.cpp.
        for nodes, size in ((2, MIB), (32, MIB), (33, 33 * MIB // 32), (256, 8 * MIB),
                            (1024, 32 * MIB), (1025, 32 * MIB)):
            self.assertEqual(model.chunk_bytes(nodes), size)

    def test_negotiation_grows_as_the_logarithm(self):
        costs = [model.negotiation_ms(at(nodes=n)) for n in (1, 2, 4, 1024)]
        self.assertEqual(costs[0], 0.0)
        self.assertAlmostEqual(costs[2], 2 * costs[1])
        self.assertAlmostEqual(costs[3], 10 * costs[1])
        self.assertEqual(model.hops(1000), 10)

    def test_only_what_follows_backward_is_exposed(self):
        network = at(nodes=2, memory_gb_s=1e9)
        last = model.bucket_ms(20 * MIB, network)
        self.assertLess(last, 30.0)
        step = model.forecast(TRACE, network)
        self.assertAlmostEqual(step["step_ms"], 100.0 + last)
        self.assertAlmostEqual(step["hidden_share"], 0.5)

    def test_buckets_follow_one_another(self):
        network = at(nodes=2, memory_gb_s=1e9, link_gbit=1.0)
        one = model.bucket_ms(20 * MIB, network)
        self.assertGreater(one, 30.0)
        self.assertAlmostEqual(model.forecast(TRACE, network)["step_ms"], 100 + 60 + 2 * one - 90)

    def test_a_pass_on_the_computing_cores_is_never_hidden(self):
        network = at(ranks_per_node=8, pass_uses_cores=True)
        passes = 2 * model.node_pass_ms(20 * MIB, network)
        self.assertAlmostEqual(model.forecast(TRACE, network)["step_ms"], 100.0 + passes)

    def test_efficiency_does_not_grow_with_nodes(self):
        steps = [model.forecast(TRACE, at(nodes=1 << n))["efficiency"] for n in range(11)]
        self.assertEqual(steps, sorted(steps, reverse=True))


def events_of(steps):
    """Of two buckets; by step: when each is submitted, us."""
    events = [
        {"name": "thread_name", "tid": 7, "args": {"name": "hora.gradients.0.0"}},
        {"name": "thread_name", "tid": 8, "args": {"name": "hora.gradients.0.1"}},
        {"name": "thread_name", "tid": 9, "args": {"name": "hora.broadcast.weight"}},
        {"name": "negotiate", "tid": 9, "ts": 1.0},
    ]
    for times in steps:
        for tid, (ts, size) in enumerate(zip(times, (100, 200)), start=7):
            events.append({"name": "negotiate", "tid": tid, "ts": ts})
            events.append({"name": "allreduce", "tid": tid, "ts": ts, "args": {"bytes": size}})
    return events


def run(ranks, plain_ms, step_ms):
    plain = {"name": "training_step/plain", "real_time": plain_ms, "forward_ms": 30.0,
             "backward_ms": 60.0}
    other = {"name": "training_step/hora_copies", "real_time": step_ms}
    return measured_step.run_of(
        {"context": {"ranks": str(ranks), "network": "n", "batch": "8"},
         "benchmarks": [plain, other]}, "hora_copies")


class Words(unittest.TestCase):
    NETWORKS = {"networks": [at(name="slow"), at(name="fast", link_gbit=80.0)]}

    def test_the_summary_has_a_row_for_each_number_of_nodes_from_16_on(self):
        lines = forecast.summary(TRACE, self.NETWORKS).split("\n")
        self.assertEqual(lines[0], "| nodes | slow: step, ms (efficiency) "
                                   "| fast: step, ms (efficiency) |")
        self.assertEqual([line.split(" | ")[0] for line in lines[2:]],
                         [f"| {nodes}" for nodes in (16, 32, 64, 128, 256, 512, 1024)])
        step = model.forecast(TRACE, at(nodes=16))
        self.assertIn(f"| 16 | {step['step_ms']:.0f} ({100 * step['efficiency']:.0f} %) |", lines[2])

    def test_assumptions_name_what_was_measured_and_each_value_once(self):
        text = forecast.assumptions(TRACE, self.NETWORKS)
        for expected in ("a network, some contender", "100 ms", "8, 80 Gbit/s", "10 us one way",
                         "nodes of 8 cores"):
            self.assertIn(expected, text)

    def test_deviations_are_named_by_ranks(self):
        measured = {"network": NETWORK, "runs": [{"ranks": 1, "step_ms": 125.0},
                                                 {"ranks": 2, "step_ms": 100.0}]}
        self.assertTrue(forecast.deviations(TRACE, measured).startswith("-20.0 % (1 rank), +"))


class MeasuredStep(unittest.TestCase):
    def test_the_last_bucket_is_ready_when_backward_ends(self):
        buckets = measured_step.buckets_of(
            events_of([(1e6, 1.02e6), (2e6, 2.03e6), (3e6, 3.04e6)]), 90.0)
        self.assertEqual(buckets, [{"bytes": 100, "ready_ms": 60.0},
                                   {"bytes": 200, "ready_ms": 90.0}])

    def test_contention_is_that_of_ranks_with_a_core_each(self):
        runs = [run(1, 100.0, 103.0), run(2, 120.0, 130.0), run(4, 250.0, 300.0)]
        found = measured_step.trace_of(events_of([(0.0, 1e4)]), runs, cores=2)
        self.assertEqual(found["what"], "n, 8 samples a rank, hora_copies")
        self.assertEqual(found["contention"], {"2": 1.2})
        self.assertEqual(found["wrapper_ms"], 3.0)
        self.assertEqual(found["backward_end_ms"], 90.0)

    def test_what_is_missing_is_named(self):
        with self.assertRaisesRegex(ValueError, "no bucket"):
            measured_step.buckets_of([], 1.0)
        with self.assertRaisesRegex(ValueError, "one rank"):
            measured_step.trace_of([], [run(2, 1.0, 1.0)], cores=2)
        with self.assertRaisesRegex(ValueError, "no contender x"):
            measured_step.run_of({"context": {"ranks": 1}, "benchmarks": [
                {"name": "training_step/plain"}]}, "x")


class Command(unittest.TestCase):
    def run_command(self, command, other):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, value in (("trace", TRACE), ("other", other)):
                paths.append(os.path.join(folder, name))
                with open(paths[-1], "w", encoding="utf-8") as file:
                    json.dump(value, file)
            program = os.path.join(FOLDER, "forecast.py")
            return subprocess.run(
                [sys.executable, "-B", program, command, *paths],
                capture_output=True, text=True, check=False)

    def test_the_table_has_a_row_for_each_number_of_nodes(self):
        run = self.run_command("table", {"networks": [at(name="n")]})
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("| n | 1 | 1 | 100.0 | 100 % | 100 % |", run.stdout)
        self.assertIn("| n | 1024 | 1024 |", run.stdout)

    def test_the_check_fails_beyond_its_bound(self):
        near = {"network": NETWORK, "runs": [{"ranks": 1, "step_ms": 114.0}]}
        far = {"network": NETWORK, "runs": [{"ranks": 1, "step_ms": 120.0}]}
        self.assertEqual(self.run_command("check", near).returncode, 0)
        self.assertEqual(self.run_command("check", far).returncode, 1)


if __name__ == "__main__":
    unittest.main()
