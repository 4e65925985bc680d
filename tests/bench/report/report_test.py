"""bench/report: figures from values, and the files that it writes. BENCH_REPORT: that folder."""

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
import unittest
import xml.dom.minidom

sys.path.insert(0, os.environ["BENCH_REPORT"])
sys.dont_write_bytecode = True
import check  # noqa: E402
import machine  # noqa: E402
import nccl_columns  # noqa: E402
import readme  # noqa: E402
import report  # noqa: E402
import results  # noqa: E402
import svg  # noqa: E402
import tables  # noqa: E402


def sizes_document():
    rows = []
    for size in (4, 65536, 4194304):
        for factor, contender in ((1, "hora_bucket"), (2, "hora"), (4, "mpi"), (20, "gloo")):
            rows.append({"name": f"allreduce/{contender}/{size}", "run_type": "iteration",
                         "real_time": 0.5 * factor, "wrong": 0.0})
    rows.append({"name": "allreduce/hora/4_median", "run_type": "aggregate", "real_time": 9.0})
    return {"context": {"ranks": "2", "nodes": "1"}, "benchmarks": rows}


def steps_document(over_plain):
    common = {"run_type": "iteration", "real_time": 100.0, "forward_ms": 40.0, "backward_ms": 50.0,
              "update_ms": 10.0, "p99_ms": 120.0, "page_faults": 3.0, "switches": 5.0,
              "switches_by_force": 2.0}
    return {"context": {"ranks": "2", "nodes": "1", "network": "resnet18"},
            "benchmarks": [{"name": "training_step/plain", **common},
                           {"name": "training_step/hora_arena", **common, "over_plain": over_plain,
                            "over_plain_low": over_plain - 0.01, "over_plain_high": over_plain + 0.01,
                            "hidden_share": 0.5, "gradients_mib": 44.66, "wrong": 0.0}]}


def record_document():
    rows = [{"name": f"negotiation/{name}", "off_ns": 1100.0, "cost_ns": cost, "spread_ns": 30.0,
             "bar_ns": 300.0, "pass": float(cost <= 300.0), "real_time": 1.2, "wrong": 0.0}
            for name, cost in (("flight_record", 123.4), ("flight_record_watched", 456.7))]
    return {"context": {"ranks": "2", "nodes": "1"}, "benchmarks": rows}


FACTS = {"date": "2026-01-02", "processor": "AMD EPYC 9004 (R) @ 2.6 GHz", "cores": 2, "mpi": "MPI 1",
         "busy_share": {"allreduce": 0.02}}


class Charts(unittest.TestCase):
    def test_lines_are_well_formed_and_have_every_series(self):
        text = svg.line_chart("a < b", "us", {"one": [(4, 0.2), (1 << 20, 300)], "two": [(4, 1)]})
        document = xml.dom.minidom.parseString(text)
        self.assertEqual(len(document.getElementsByTagName("polyline")), 2)
        words = [node.firstChild.data for node in document.getElementsByTagName("text")]
        for expected in ("a < b", "one", "two", "4", "1M", "us"):
            self.assertIn(expected, words)

    def test_bars_reach_from_zero_to_their_value(self):
        text = svg.interval_chart("t", "percent", [("hora", -5.0, -6.0, -4.0), ("x", 20, 18, 22)], "0")
        bars = xml.dom.minidom.parseString(text).getElementsByTagName("rect")[1:]
        starts = [float(bar.getAttribute("x")) for bar in bars]
        widths = [float(bar.getAttribute("width")) for bar in bars]
        self.assertAlmostEqual(widths[1] / widths[0], 4.0, places=1)
        self.assertAlmostEqual(starts[0] + widths[0], starts[1], places=0)

    def test_nothing_to_draw_is_an_error(self):
        self.assertRaises(ValueError, svg.line_chart, "t", "us", {})
        self.assertRaises(ValueError, svg.interval_chart, "t", "l", [], "0")


class Figures(unittest.TestCase):
    def test_interval_of_a_mean(self):
        mean, low, high = results.mean_interval([1.0, 2.0, 3.0, 4.0, 5.0])
        self.assertAlmostEqual(mean, 3.0)
        # 2.776 * sqrt(2.5) / sqrt(5)
        self.assertAlmostEqual(high - mean, 1.963, places=3)
        self.assertAlmostEqual(mean - low, 1.963, places=3)

    # Le Boudec's table, as tests/bench/harness/statistics_test.cpp has it.
    def test_interval_of_a_median(self):
        for count, low, high in ((3, 1, 3), (6, 1, 6), (9, 2, 8), (12, 3, 10), (20, 6, 15),
                                 (70, 27, 44)):
            self.assertEqual(results.median_interval(range(1, count + 1)),
                             (low, (count + 1) / 2, high))

    def test_one_run_has_its_own_interval_and_several_that_of_their_mean(self):
        parts = [results.parse(steps_document(ratio)) for ratio in (1.0, 1.1)]
        self.assertEqual(results.over_plain(parts[:1], "hora_arena"), (1.0, 0.99, 1.01))
        ratio, low, high = results.over_plain(parts, "hora_arena")
        self.assertAlmostEqual(ratio, 1.05)
        self.assertLess(low, 1.0)
        self.assertGreater(high, 1.1)
        self.assertIsNone(results.over_plain(parts, "plain"))

    def test_aggregates_are_left_out(self):
        part = results.parse(sizes_document())
        self.assertEqual(set(part.by_size()["allreduce"]), {4, 65536, 4194304})
        self.assertEqual(part.by_size()["allreduce"][4]["hora"]["real_time"], 1.0)

    def test_peers_are_multiples_of_hora_bucket(self):
        text = tables.sizes(results.parse(sizes_document()).by_size())
        row = next(line for line in text.split("\n") if line.startswith("| allreduce 64K"))
        self.assertEqual([cell.strip() for cell in row.split("|")[1:-1]],
                         ["allreduce 64K", "0.50", "1.00", "4.00", "20.0"])

    def test_rows_are_of_sizes_far_apart(self):
        self.assertEqual(tables.chosen_sizes([4, 64, 8192, 16384, 65536, 1048576]),
                         [4, 16384, 1048576])
        self.assertEqual(tables.chosen_sizes([64]), [64])

    def test_idle_and_waiting_for_disks_are_not_busy(self):
        before = "cpu 100 0 100 800 0 0 0 0 0 0\n"
        self.assertAlmostEqual(machine.busy_share(before, "cpu 110 0 110 870 10 0 0 0 0 0\n"), 0.2)
        self.assertEqual(machine.busy_share(before, before), 0.0)


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.readme = os.path.join(folder.name, "README.md")
        self.folder = os.path.join(folder.name, "bench", "results", "here")
        os.makedirs(self.folder)
        self.write("machine.json", FACTS)
        self.write("allreduce.json", sizes_document())
        for run, ratio in ((1, 1.08), (2, 1.10)):
            self.write(f"training_resnet18_{run}.json", steps_document(ratio))

    def write(self, name, document):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            json.dump(document, file)

    def run_report(self, readme):
        with open(self.readme, "w", encoding="utf-8") as file:
            file.write(readme)
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            code = report.main([self.folder, "--readme", self.readme])
        with open(self.readme, encoding="utf-8") as file:
            return code, file.read(), errors.getvalue()

    def test_the_readme_changes_between_its_markers_alone_and_only_once(self):
        before = f"# hora\n\n{readme.BEGIN}\nold\n{readme.END}\n\n## Limits\n"
        code, first, _ = self.run_report(before)
        self.assertEqual(code, 0)
        self.assertTrue(first.startswith(f"# hora\n\n{readme.BEGIN}\n"))
        self.assertTrue(first.endswith(f"\n{readme.END}\n\n## Limits\n"))
        self.assertNotIn("old", first)
        self.assertIn("+9.0 %", first)  # the mean of both runs
        self.assertEqual(self.run_report(first)[1], first)

    def test_every_plot_that_the_report_names_is_written(self):
        self.run_report(f"{readme.BEGIN}\n{readme.END}\n")
        with open(os.path.join(self.folder, "report.md"), encoding="utf-8") as file:
            text = file.read()
        plots = sorted(name for name in os.listdir(self.folder) if name.endswith(".svg"))
        self.assertEqual(plots, ["allreduce_time.svg", "training_resnet18.svg"])
        for name in plots:
            self.assertIn(f"]({name})", text)
            xml.dom.minidom.parse(os.path.join(self.folder, name))

    def test_the_readme_has_a_row_a_claim(self):
        _, text, _ = self.run_report(f"{readme.BEGIN}\n{readme.END}\n")
        self.assertEqual(text.count("\n| allreduce of 64KiB in a bucket | 0.50 us | MPI 4.00 times as long, gloo "
                                    "20.0 times as long |"), 1, text)
        self.assertNotIn("core of a rank", text)

    def test_costs_of_the_record_stand_in_the_report(self):
        self.write("record.json", record_document())
        self.run_report(f"{readme.BEGIN}\n{readme.END}\n")
        with open(os.path.join(self.folder, "report.md"), encoding="utf-8") as file:
            written = file.read()
        self.assertIn("| flight_record | 123 ns (300) |", written)
        self.assertIn("| flight_record_watched | **457 ns** (300) |", written)

    def test_a_busy_part_is_said(self):
        path = os.path.join(self.folder, "machine.json")
        self.assertEqual(machine.main(["", "--note", path, "resnet18", "0.5"]), 0)
        _, text, _ = self.run_report(f"{readme.BEGIN}\n{readme.END}\n")
        self.assertIn("before resnet18:", text)
        with open(os.path.join(self.folder, "report.md"), encoding="utf-8") as file:
            self.assertIn("before resnet18 50%.", file.read())

    def test_more_ranks_than_cores_and_wrong_results_are_said(self):
        document = sizes_document()
        document["context"]["ranks"] = "4"
        document["benchmarks"][0]["wrong"] = 2.0
        self.write("allreduce.json", document)
        self.run_report(f"{readme.BEGIN}\n{readme.END}\n")
        with open(os.path.join(self.folder, "report.md"), encoding="utf-8") as file:
            text = file.read()
        self.assertIn("oversubscribed", text)
        self.assertIn("allreduce/hora_bucket/4", text)

    def test_a_readme_without_markers_and_a_broken_file_are_errors(self):
        code, text, errors = self.run_report("# hora\n")
        self.assertEqual((code, text), (1, "# hora\n"))
        self.assertIn(readme.BEGIN, errors)
        self.write("allreduce.json", {"no": "benchmarks"})
        code, _, errors = self.run_report(f"{readme.BEGIN}\n{readme.END}\n")
        self.assertEqual(code, 1)
        self.assertIn("allreduce.json", errors)


class NcclColumns(unittest.TestCase):
    def columns(self, operation, *contenders):
        rows = [{"name": f"{operation}/{name}/4096", "real_time": time, "algbw": 1.5, "busbw": 1.25,
                 "wrong": 0.0, "label": "float sum", "count": 1024.0}
                for name, time in contenders]
        text = nccl_columns.columns(results.parse({"benchmarks": rows}), [])
        return [line.split() for line in text.split("\n") if line and not line.startswith("#")]

    def test_ways_of_one_contender_share_a_line(self):
        lines = self.columns("allreduce", ("mpi", 2.0), ("mpi_out_of_place", 3.0))
        self.assertEqual(lines, [["4096", "1024", "float", "sum", "-1", "3.00", "1.50", "1.25", "0",
                                  "2.00", "1.50", "1.25", "0"]])

    def test_a_way_that_there_is_not_is_not_available(self):
        self.assertEqual(self.columns("allreduce", ("hora", 2.0))[0][5:],
                         ["N/A"] * 4 + ["2.00", "1.50", "1.25", "0"])
        self.assertEqual(self.columns("alltoall", ("hora", 2.0))[0][5:],
                         ["2.00", "1.50", "1.25", "0"] + ["N/A"] * 4)
        self.assertEqual(self.columns("broadcast", ("hora", 2.0))[0][4], "0")


class StoredRatios(unittest.TestCase):
    BOUND = {"row": "a", "counter": "ratio", "at_least": 2.0}

    def missed(self, *values):
        tries = iter(values)
        return check.missed_in_every_try([self.BOUND], lambda: {"a": {"ratio": next(tries)}})

    def test_one_good_try_is_enough_and_ends_the_measuring(self):
        self.assertEqual(self.missed(2.0), [])
        self.assertEqual(self.missed(1.0, 1.9, 2.5), [])

    def test_three_bad_tries_are_a_regression(self):
        self.assertEqual(self.missed(1.0, 1.5, 1.9, 9.0), [(self.BOUND, [1.0, 1.5, 1.9])])

    def test_two_rows_make_a_ratio(self):
        rows = {"mpi": {"real_time": 6.0}, "hora": {"real_time": 2.0}}
        self.assertEqual(check.value_of({"row": "mpi", "over": "hora"}, rows), 3.0)
        self.assertRaises(KeyError, check.value_of, {"row": "none", "counter": "x"}, rows)

    def test_limits_hold_on_both_sides(self):
        self.assertTrue(check.kept({"at_most": 1.0}, 1.0))
        self.assertFalse(check.kept({"at_most": 1.0}, 1.1))
        self.assertFalse(check.kept({"at_least": 1.0}, 0.9))

    def test_a_program_that_fails_is_named_with_its_words(self):
        with self.assertRaises(RuntimeError) as raised:
            check.run([sys.executable, "-c", "import sys; print('no memory'); sys.exit(3)"])
        self.assertIn("exit code 3", str(raised.exception))
        self.assertIn("no memory", str(raised.exception))

    def run_main(self, cache, **program):
        """(exit code, what is said) with bounds of one program, which the build has not."""
        with tempfile.TemporaryDirectory() as folder:
            bounds = os.path.join(folder, "bounds.json")
            with open(bounds, "w", encoding="utf-8") as file:
                json.dump({"programs": [dict(program, program="step", ranks=2)]}, file)
            with open(os.path.join(folder, "CMakeCache.txt"), "w", encoding="utf-8") as file:
                file.write(cache)
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                code = check.main([bounds, folder, "mpirun"])
            return code, said.getvalue()

    def test_a_program_that_is_missing_fails_unless_the_build_is_without_it(self):
        code, said = self.run_main("HORA_TORCH:BOOL=ON\n", needs="HORA_TORCH")
        self.assertEqual((code, said), (1, "step: FAILED: not built\n"))
        self.assertEqual(self.run_main("HORA_TORCH:BOOL=OFF\n")[0], 1)
        code, said = self.run_main("HORA_TORCH:BOOL=OFF\n", needs="HORA_TORCH")
        self.assertEqual((code, said), (0, "step: left out: this build has HORA_TORCH off\n"))

    def test_stored_bounds_have_a_figure_and_a_limit(self):
        path = os.path.join(os.environ["BENCH_REPORT"], "..", "results", "bounds.json")
        with open(path, encoding="utf-8") as file:
            programs = json.load(file)["programs"]
        for one in programs:
            for bound in one["bounds"]:
                self.assertTrue("counter" in bound or "over" in bound, bound)
                self.assertTrue("at_least" in bound or "at_most" in bound, bound)


if __name__ == "__main__":
    unittest.main()
