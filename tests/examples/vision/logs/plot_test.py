"""examples/plot.py on small logs: which files it writes, which curves they hold, and how it names
what it cannot draw. Usage: plot_test.py PLOT_PY"""
import base64
import contextlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree as ElementTree

PLOT = sys.argv.pop(1)
MATPLOTLIB = tempfile.TemporaryDirectory(prefix="plot_test.")
os.environ["MPLCONFIGDIR"] = MATPLOTLIB.name  # a list of fonts is kept there
specification = importlib.util.spec_from_file_location("plot", PLOT)
plot = importlib.util.module_from_spec(specification)
specification.loader.exec_module(plot)
SVG = "{http://www.w3.org/2000/svg}"
XHTML = "{http://www.w3.org/1999/xhtml}"


def log(ranks, epochs=4, steps=5, seconds=8.0, top5=False):
    """Lines as TrainingLog writes them: with `ranks` ranks an epoch takes seconds / ranks."""
    lines = [{"kind": "run", "ranks": ranks, "nodes": 1, "batch": 8, "epochs": epochs,
              "steps": steps, "data": "digits & more", "model": "ResNet-18"}]
    for epoch in range(1, epochs + 1):
        for step in range(1, steps + 1):
            lines.append({"kind": "step", "epoch": epoch, "step": step,
                          "loss": 2.0 / (epoch + step), "top1": 20.0 * epoch, "learning_rate": 0.1, "images_per_second": 100.0,
                          "seconds": 0.1, "data_seconds": 0.01, "exposed_seconds": 0.02})
        lines.append({"kind": "epoch", "epoch": epoch, "loss": 2.0 / epoch, "top1": 20.0 * epoch,
                      "steps": steps, "images_per_second": 100.0 * ranks,
                      "seconds": seconds / ranks, "data_seconds": 0.5, "exposed_seconds": 1.0,
                      "validation_seconds": 0.25})
        if top5:
            lines[-1]["top5"] = 90.0
    return "".join(json.dumps(line) + "\n" for line in lines)


def points(root, gid):
    """Of the first path in the group of that id, x and y as drawn (y grows downwards)."""
    for group in root.iter(f"{SVG}g"):
        if group.get("id") == gid:
            path = group.find(f".//{SVG}path").get("d")
            numbers = [float(text) for text in re.findall(r"-?\d+(?:\.\d+)?", path)]
            return list(zip(numbers[::2], numbers[1::2]))
    raise AssertionError(f"no {gid}")


def texts(root):
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


class Plot(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="plot_test.")
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def words(self, files):
        return [PLOT, "--output", self.path("out"), *files]

    def draw(self, *files):
        output, errors = io.StringIO(), io.StringIO()
        with (unittest.mock.patch("sys.argv", self.words(files)),
              contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors)):
            plot.main()
        self.assertEqual(errors.getvalue(), "")
        return {name: ElementTree.parse(self.path(f"out/{name}")).getroot()
                for name in sorted(os.listdir(self.path("out")))}

    def test_curves_of_one_run(self):
        drawn = self.draw(self.write("one.json", log(2)))
        self.assertEqual(list(drawn), ["index.html", "loss.svg", "reading.svg", "split.svg",
                                       "top1.svg"])
        accuracy = points(drawn["top1.svg"], "top1: one")
        self.assertEqual(len(accuracy), 4)
        self.assertEqual(len(points(drawn["top1.svg"], "top1-training: one")), 20)
        # It grows by the same every epoch, and y grows downwards.
        rises = [first[1] - second[1] for first, second in zip(accuracy, accuracy[1:])]
        self.assertTrue(all(rise > 5 and abs(rise - rises[0]) < 0.01 for rise in rises), rises)
        falls = points(drawn["loss.svg"], "loss: one")
        self.assertEqual([y for _, y in falls], sorted(y for _, y in falls))

    def test_scaling_beside_the_ideal(self):
        drawn = self.draw(*(self.write(f"np{ranks}.json", log(ranks)) for ranks in (4, 1, 2)))
        for name in ("throughput", "time"):
            measured = points(drawn["scaling.svg"], f"{name}: measured")
            self.assertEqual(len(measured), 3)
            self.assertEqual(measured, points(drawn["scaling.svg"], f"{name}: ideal"))
        for label in ("200, 100 %", "400, 100 %", "4, 100 %", "2, 100 %"):
            self.assertIn(label, texts(drawn["scaling.svg"]))

    def test_scaling_below_the_ideal(self):
        slow = log(4, seconds=16.0).replace("400.0", "200.0")
        drawn = self.draw(self.write("np1.json", log(1)), self.write("np4.json", slow))
        measured = points(drawn["scaling.svg"], "throughput: measured")
        ideal = points(drawn["scaling.svg"], "throughput: ideal")
        self.assertEqual(measured[0], ideal[0])
        self.assertGreater(measured[1][1], ideal[1][1])
        self.assertIn("200, 50 %", texts(drawn["scaling.svg"]))
        self.assertIn("4, 50 %", texts(drawn["scaling.svg"]))

    def test_split_of_a_step(self):
        drawn = self.draw(self.write("run.json", log(1)))["split.svg"]
        # 8 s of 5 steps, 0.5 s of them data and 1 s averages.
        widths = []
        for part in ("computing", "waiting for data", "waiting for averages"):
            across = [x for x, _ in points(drawn, f"{part}: run")]
            widths.append(max(across) - min(across))
        self.assertAlmostEqual(widths[0] / widths[1], 6.5 / 0.5, places=3)
        self.assertAlmostEqual(widths[2] / widths[1], 2, places=3)
        self.assertIn("1600 ms, 19 % waiting", texts(drawn))

    def test_reading(self):
        slower = log(1).replace('"data_seconds": 0.01', '"data_seconds": 0.05', 5)  # epoch 1
        drawn = self.draw(self.write("run.json", slower))["reading.svg"]
        waits = [y for _, y in points(drawn, "wait-step: run")]
        self.assertEqual(len(waits), 20)
        # 50 and 10 percent: y grows downwards from the top.
        self.assertEqual(len({round(y, 3) for y in waits[:5]}), 1)
        self.assertLess(waits[4] + 50, waits[5])
        self.assertEqual(len(points(drawn, "wait: run")), 4)
        self.assertEqual(len(points(drawn, "read: run")), 4)
        self.assertEqual(len({round(y, 3) for _, y in points(drawn, "read-step: run")}), 1)

    def test_a_resumed_run_is_one_course(self):
        lines = log(1, epochs=3).splitlines(True)
        run = json.loads(lines[0])
        resumed = json.dumps(run | {"resumed_epoch": 1, "resumed_step": 2}) + "\n"
        # Epoch 2 had come to its 4th step; its 3rd and 4th are done once more.
        text = "".join(lines[:1 + 6 + 4]) + resumed + "".join(lines[1 + 6 + 2:])
        drawn = self.draw(self.write("run.json", text), self.write("whole.json", log(1, epochs=3)))
        for gid in ("loss", "loss-training"):
            both = [points(drawn["loss.svg"], f"{gid}: {name}") for name in ("run", "whole")]
            self.assertEqual(*both)

    def test_page_holds_pictures_and_runs(self):
        drawn = self.draw(self.write("<a> & b.json", log(1, top5=True)),
                          self.write("c.json", log(2)))
        page = drawn["index.html"]
        cells = [cell.text for cell in page.iter(f"{XHTML}td")]
        self.assertEqual(cells[:7], ["<a> & b", "1", "1", "digits & more", "4", "80.00 %", "100"])
        titles = []
        for image in page.iter(f"{XHTML}img"):
            kind, data = image.get("src").split(",")
            self.assertEqual(kind, "data:image/svg+xml;base64")
            self.assertEqual(ElementTree.fromstring(base64.b64decode(data)).tag, f"{SVG}svg")
            titles.append(image.get("alt"))
        self.assertEqual(titles, ["Accuracy, top-1", "Accuracy, top-5", "Loss", "Scaling", "Time",
                                  "Reading"])

    def test_reports_have_throughput_alone(self):
        reports = [self.write(f"np{ranks}.json", json.dumps(
            {"best_accuracy": 97.25, "images_per_second": 86.5 * ranks, "hidden_share": 0.75,
             "ranks": ranks, "nodes": 1, "data": "digits", "epochs": 3}, indent=2))
            for ranks in (1, 2)]
        drawn = self.draw(*reports)
        self.assertEqual(list(drawn), ["index.html", "scaling.svg"])
        self.assertEqual(len(points(drawn["scaling.svg"], "throughput: measured")), 2)
        self.assertRaises(AssertionError, points, drawn["scaling.svg"], "time: measured")
        self.assertIn("97.25 %", [cell.text for cell in drawn["index.html"].iter(f"{XHTML}td")])

    def test_a_run_that_goes_on(self):
        text = log(1, epochs=2)
        drawn = self.draw(self.write("run.json", text[:-10]),
                          self.write("first_epoch.json", "".join(text.splitlines(True)[:3])))
        self.assertEqual(len(points(drawn["loss.svg"], "loss: run")), 1)

    def test_values_that_are_not_finite_are_gaps(self):
        text = log(1).replace('"loss": 1.0,', '"loss": null,')
        self.assertEqual(len(points(self.draw(self.write("run.json", text))["loss.svg"],
                                    "loss: run")), 3)

    def test_same_input_same_files(self):
        path = self.write("run.json", log(1))
        self.draw(path)
        contents = []
        for _ in range(2):
            with open(self.path("out/top1.svg"), "rb") as file:
                contents.append(file.read())
            self.draw(path)
        self.assertEqual(*contents)

    def test_same_names_in_several_folders(self):
        os.makedirs(self.path("a"))
        os.makedirs(self.path("b"))
        drawn = self.draw(self.write("a/log.json", log(1)), self.write("b/log.json", log(1)))
        self.assertEqual(len(points(drawn["loss.svg"], f"loss: {self.path('b/log')}")), 4)

    def test_as_a_program(self):
        path = self.write("run.json", log(1))
        done = subprocess.run([sys.executable, "-B", *self.words([path])], capture_output=True,
                              text=True, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for name in os.listdir(self.path("out")):
            self.assertIn(self.path(f"out/{name}"), done.stdout)

    def message_about(self, path):
        with (unittest.mock.patch("sys.argv", self.words([path])),
              self.assertRaises(SystemExit) as end):
            plot.main()
        self.assertFalse(os.path.exists(self.path("out")))
        return end.exception.code  # a text: exit code 1

    def test_bad_files_are_named(self):
        for text, expected in [
                ("", "holds no JSON objects"),
                ("[]", "holds no JSON objects"),
                ('{"kind": "run"}\nnot JSON\n', "line 2 is no JSON"),
                ('{"other": 1}', 'no "ranks"'),
                (log(1).replace('"seconds": 8.0, ', ""), "field is missing or is no number"),
                (log(1).replace("8.0", '"eight"'), "field is missing or is no number")]:
            message = self.message_about(self.write("bad.json", text))
            self.assertIn(self.path("bad.json"), message)
            self.assertIn(expected, message)
        self.assertIn(self.path("absent.json"), self.message_about(self.path("absent.json")))


if __name__ == "__main__":
    unittest.main()
