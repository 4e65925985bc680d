#!/usr/bin/env python3
"""Draws what trainers have logged: curves of loss and accuracy, throughput and time against ranks,
how the time of a step is split, and reading of images. Writes SVG files and index.html, one page with all of them.

    plot.py --output plots np1.json np2.json np4.json

Each FILE is what a trainer wrote by --log-json (one JSON object a line, see
examples/vision/logs/training_log.h) or by --report (one object; it has no curves and no times). A
run is called by its file's name without ".json"; runs are compared with the one of fewest ranks.
Needs matplotlib (Debian: python3-matplotlib)."""
import argparse
import base64
import html
import json
import math
import os
import sys

try:
    import matplotlib
except ImportError:
    sys.exit("plot.py: Python's matplotlib is missing; install it (Debian: python3-matplotlib)")

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.ticker import (FixedLocator, LogLocator, MaxNLocator, NullFormatter,  # noqa: E402
                               StrMethodFormatter)

# Okabe and Ito, "Color Universal Design", 2008: told apart by people who see colours differently.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"]
GREY = "#8c8c8c"
# Parts of a step and their colours, from below.
PARTS = [("computing", "#56b4e9"), ("waiting for data", "#e69f00"),
         ("waiting for averages", "#d55e00")]
# Of text that a line may cross.
BEHIND_TEXT = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "plot.py",  # the same input gives the same file
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 4,
}


class BadLog(Exception):
    """A file that is no log; the text names it."""


def number(value):
    """As JSON has it; null stands for what was not finite, and is a gap in a curve."""
    return math.nan if value is None else float(value)


class Run:
    """One file: `about` is its first object, `steps` and `epochs` are those of these kinds."""

    def __init__(self, path):
        self.name = os.path.basename(path).removesuffix(".json")
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise BadLog(f"{path}: {error}") from error
        objects = parse(path, text)
        self.about = objects[0]  # how it began; resumed, the rest may differ
        for field in ("ranks", "data"):
            if field not in self.about:
                raise BadLog(f'{path}: the first object has no "{field}"; expected a file that a '
                             "trainer wrote by --log-json or --report")
        try:
            objects = followed(objects)
            self.steps = [entry for entry in objects if entry.get("kind") == "step"]
            self.epochs = [entry for entry in objects if entry.get("kind") == "epoch"]
            self.ranks = int(self.about["ranks"])
            self.check()
        except (KeyError, TypeError, ValueError) as error:
            raise BadLog(f"{path}: a field is missing or is no number: {error}") from error

    def check(self):
        """Reads once what is drawn later, so that a bad file is named before any is drawn."""
        self.step_curve("loss")
        self.epoch_curve("loss")
        for name in ("top1", "top5"):
            self.step_curve(name)
            self.epoch_curve(name)
        self.images_per_second()
        self.split()
        self.step_reading()
        self.epoch_reading()

    def step_curve(self, field):
        """Epochs done, in fractions, and values."""
        known = [entry for entry in self.steps if field in entry]
        return [self.place(entry) for entry in known], [number(entry[field]) for entry in known]

    def place(self, step):
        return step["epoch"] - 1 + step["step"] / float(self.about.get("steps", 1))

    def epoch_curve(self, field):
        known = [entry for entry in self.epochs if field in entry]
        return [entry["epoch"] for entry in known], [number(entry[field]) for entry in known]

    def step_reading(self):
        """Epochs done, images/s of all ranks and percent of the time that waited for data."""
        images = float(self.about.get("ranks", 1)) * float(self.about.get("batch", 0))
        known = [entry for entry in self.steps if number(entry["seconds"]) > 0]
        return ([self.place(entry) for entry in known],
                [images / number(entry["seconds"]) for entry in known],
                [waiting(entry) for entry in known])

    def epoch_reading(self):
        known = [entry for entry in self.epochs if number(entry["seconds"]) > 0]
        return ([entry["epoch"] for entry in known],
                [number(entry["images_per_second"]) for entry in known],
                [waiting(entry) for entry in known])

    def settled(self):
        """The epochs, without the first where there are others: it warms up."""
        return self.epochs[1:] or self.epochs

    def images_per_second(self):
        """Of all settled epochs together, or as reported; None where there is neither."""
        seconds = self.seconds("seconds")
        if seconds is not None:
            images = sum(number(e["images_per_second"]) * number(e["seconds"])
                         for e in self.settled())
            return images / (seconds * len(self.settled()))
        reported = "images_per_second" in self.about
        return number(self.about["images_per_second"]) if reported else None

    def seconds(self, field):
        """Of an epoch, mean over the settled ones; None without epochs."""
        values = [number(entry[field]) for entry in self.settled()]
        return sum(values) / len(values) if values else None

    def split(self):
        """Milliseconds of a step for each of PARTS; None without epochs."""
        if not self.epochs:
            return None
        steps = sum(entry["steps"] for entry in self.settled()) / len(self.settled())
        data, exposed = self.seconds("data_seconds"), self.seconds("exposed_seconds")
        rest = self.seconds("seconds") - data - exposed
        return [1000 * value / steps for value in (rest, data, exposed)]


def waiting(entry):
    return 100 * number(entry["data_seconds"]) / number(entry["seconds"])


def followed(objects):
    """Without the entries of a course that was given up: those of steps behind the place at which a
    later run has resumed."""
    kept = []
    for entry in objects:
        if entry.get("kind") == "run" and "resumed_epoch" in entry:
            place = (int(entry["resumed_epoch"]), int(entry["resumed_step"]))
            kept = [old for old in kept if done_by(old) <= place]
        kept.append(entry)
    return kept


def done_by(entry):
    """Epochs, and steps of the one after these, that are done where an entry is written."""
    if entry.get("kind") == "step":
        return entry["epoch"] - 1, entry["step"]
    return entry["epoch"] if entry.get("kind") == "epoch" else 0, 0


def parse(path, text):
    """The objects of a file: one for all of it, or one a line. A last line without its end is left
    out: its trainer still runs, or was ended."""
    try:
        objects = [json.loads(text)]
    except ValueError:
        lines = text.split("\n")[:-1]
        objects = []
        for count, line in enumerate(lines, start=1):
            try:
                objects.append(json.loads(line))
            except ValueError as error:
                raise BadLog(f"{path}, line {count} is no JSON: {error}") from error
    if not objects or not all(isinstance(entry, dict) for entry in objects):
        raise BadLog(f"{path} holds no JSON objects; expected a file that a trainer wrote by "
                     "--log-json or --report")
    return objects


def axes_of(title, x, y, columns=1):
    figure, axes = plt.subplots(1, columns, figsize=(6.4 if columns == 1 else 9.6, 3.8),
                                layout="constrained", squeeze=False)
    for place, axis in enumerate(axes[0]):
        axis.set(title=title[place], xlabel=x, ylabel=y[place])
    return figure, axes[0]


def draw_curves(runs, field, title, unit):
    """Of training in thin lines, of epochs (validation for accuracies) with points."""
    figure, (axis,) = axes_of([title], "epoch", [unit])
    drawn = False
    for run, colour in zip(runs, repeated(COLOURS)):
        x, y = run.step_curve(field)
        if x:
            axis.plot(x, y, color=colour, linewidth=0.8, alpha=0.45,
                      gid=f"{field}-training: {run.name}")
        x, y = run.epoch_curve(field)
        if x:
            axis.plot(x, y, color=colour, marker="o", label=run.name, gid=f"{field}: {run.name}")
            drawn = True
    if not drawn:
        plt.close(figure)
        return None
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_ylim(bottom=0)
    axis.margins(x=0.02)
    # Beside the axes, for curves may end at any corner.
    axis.legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9)
    return figure


def draw_reading(runs):
    """How fast images were read, and how long the training waited for them. None without epochs."""
    if not any(run.epochs for run in runs):
        return None
    figure, axes = axes_of(["Images read, all ranks", "Time that waited for data (rank 0)"],
                           "epoch", ["images/s", "%"], 2)
    for run, colour in zip(runs, repeated(COLOURS)):
        for place, (axis, name) in enumerate(zip(axes, ("read", "wait")), start=1):
            steps, epochs = run.step_reading(), run.epoch_reading()
            if steps[0]:
                axis.plot(steps[0], steps[place], color=colour, linewidth=0.8, alpha=0.45,
                          gid=f"{name}-step: {run.name}")
            if epochs[0]:
                axis.plot(epochs[0], epochs[place], color=colour, marker="o", label=run.name,
                          gid=f"{name}: {run.name}")
    for axis in axes:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set_ylim(bottom=0)
        axis.margins(x=0.02)
    axes[1].legend(loc="upper left", bbox_to_anchor=(1.01, 1), fontsize=9)
    return figure


def repeated(colours):
    while True:
        yield from colours


def draw_scaling(runs):
    """Throughput and time of an epoch against ranks; the ideal goes through the mean of the runs of
    fewest ranks. None where all have the same number of ranks."""
    known = [run for run in runs if run.images_per_second() is not None]
    ranks = sorted({run.ranks for run in known})
    if len(ranks) < 2:
        return None
    timed = [run for run in known if run.seconds("seconds") is not None]
    panels = [("throughput", "images/s", known, Run.images_per_second, +1)]
    if len({run.ranks for run in timed}) > 1:
        panels.append(("time", "seconds", timed, lambda run: run.seconds("seconds"), -1))
    titles = {"throughput": "Throughput", "time": "Training time of an epoch"}
    figure, axes = axes_of([titles[name] for name, *_ in panels], "ranks",
                           [unit for _, unit, *_ in panels], len(panels))
    for axis, (name, _, shown, value, power) in zip(axes, panels):
        points = {count: [value(run) for run in shown if run.ranks == count]
                  for count in sorted({run.ranks for run in shown})}
        means = {count: sum(values) / len(values) for count, values in points.items()}
        fewest = min(means)
        axis.plot(list(means), [means[fewest] * (count / fewest) ** power for count in means],
                  color=GREY, linestyle="--", label="ideal", gid=f"{name}: ideal")
        axis.plot(list(means), list(means.values()), color=COLOURS[0], marker="o",
                  label="measured", gid=f"{name}: measured")
        for count, values in points.items():
            axis.plot([count] * len(values), values, linestyle="none", marker="o", markersize=3,
                      color=COLOURS[0], alpha=0.5)
        for count, mean in means.items():
            share = (mean / (means[fewest] * (count / fewest) ** power)) ** power
            axis.annotate(f"{mean:.3g}" + (f", {100 * share:.0f} %" if count != fewest else ""),
                          (count, mean), xytext=(5, -11 * power), textcoords="offset points",
                          va="center", fontsize=9, bbox=BEHIND_TEXT)
        # The ideal is a straight line.
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        narrow = max(means.values()) < 5 * min(means.values())
        axis.yaxis.set_major_locator(LogLocator(subs=range(1, 10) if narrow else (1, 2, 5)))
        axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.xaxis.set_major_locator(FixedLocator(list(means)))
        axis.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.minorticks_off()
        axis.margins(x=0.2, y=0.12)
        axis.legend(loc="upper left" if power > 0 else "lower left", fontsize=9)
    return figure


def draw_split(runs):
    """A bar a run. None where no run has epochs."""
    known = [(run, run.split()) for run in runs if run.split() is not None]
    if not known:
        return None
    figure, (axis,) = axes_of(["Time of a step (rank 0)"], "milliseconds", [""])
    left = [0.0] * len(known)
    names = [run.name for run, _ in known]
    for part, (label, colour) in enumerate(PARTS):
        widths = [split[part] for _, split in known]
        bars = axis.barh(range(len(known)), widths, left=left, height=0.6, color=colour,
                         label=label)
        for name, bar in zip(names, bars):
            bar.set_gid(f"{label}: {name}")
        left = [start + width for start, width in zip(left, widths)]
    for place, (_, split) in enumerate(known):
        lost = 100 * (split[1] + split[2]) / sum(split) if sum(split) > 0 else 0
        axis.annotate(f"{sum(split):.0f} ms, {lost:.0f} % waiting", (left[place], place),
                      xytext=(5, 0), textcoords="offset points", va="center", fontsize=9)
    axis.set_yticks(range(len(known)), names)
    axis.invert_yaxis()
    axis.grid(axis="y", visible=False)
    axis.set_xlim(right=1.35 * max(left))
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(PARTS), fontsize=9)
    return figure


def table(runs):
    """Rows of HTML: what each run was, and its best accuracy."""
    head = ["run", "ranks", "nodes", "data", "epochs", "best top-1", "images/s"]
    rows = []
    for run in runs:
        best = max((value for value in run.epoch_curve("top1")[1] if not math.isnan(value)),
                   default=number(run.about.get("best_accuracy")))
        speed = run.images_per_second()
        rows.append([run.name, run.ranks, run.about.get("nodes", ""), run.about["data"],
                     run.about.get("epochs", ""), "" if math.isnan(best) else f"{best:.2f} %",
                     "" if speed is None else f"{speed:.0f}"])
    cells = lambda kind, row: "".join(f"<{kind}>{html.escape(str(cell))}</{kind}>" for cell in row)
    return "\n".join(f"<tr>{cells('td' if place else 'th', row)}</tr>"
                     for place, row in enumerate([head, *rows]))


def page(runs, files):
    """XHTML that needs no other file: the pictures are in it."""
    pictures = []
    for title, path in files:
        with open(path, "rb") as file:
            data = base64.b64encode(file.read()).decode("ascii")
        pictures.append(f'<h2>{html.escape(title)}</h2>\n<p><img alt="{html.escape(title)}" '
                        f'src="data:image/svg+xml;base64,{data}"/></p>')
    newline = "\n"
    return f"""<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" lang="en">
<head>
<meta charset="utf-8"/>
<title>Trainings</title>
<style>
body {{ font-family: sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; color: #222; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: 0.25em 0.8em; border-bottom: 1px solid #ddd; text-align: left; }}
img {{ max-width: 100%; }}
</style>
</head>
<body>
<h1>Trainings</h1>
<table>
{table(runs)}
</table>
{newline.join(pictures)}
</body>
</html>
"""


def draw_all(runs, folder):
    figures = [
        ("Accuracy, top-1", "top1.svg",
         draw_curves(runs, "top1", "Top-1 accuracy: validation (points), training (thin)", "%")),
        ("Accuracy, top-5", "top5.svg",
         draw_curves(runs, "top5", "Top-5 accuracy: validation (points), training (thin)", "%")),
        ("Loss", "loss.svg",
         draw_curves(runs, "loss", "Training loss: epochs (points), steps (thin)", "loss")),
        ("Scaling", "scaling.svg", draw_scaling(runs)),
        ("Time", "split.svg", draw_split(runs)),
        ("Reading", "reading.svg", draw_reading(runs)),
    ]
    files = []
    for title, name, figure in figures:
        if figure is None:
            continue
        path = os.path.join(folder, name)
        figure.savefig(path, metadata={"Date": None, "Title": title})
        plt.close(figure)
        files.append((title, path))
    path = os.path.join(folder, "index.html")
    with open(path, "w", encoding="utf-8") as file:
        file.write(page(runs, files))
    return [name for _, name in files] + [path]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", nargs="+", help="log or report of a run")
    parser.add_argument("--output", metavar="FOLDER", default="plots",
                        help="made where it is missing [default: %(default)s]")
    arguments = parser.parse_args()
    try:
        runs = [Run(path) for path in arguments.files]
        if len({run.name for run in runs}) < len(runs):  # of one name in several folders
            for run, path in zip(runs, arguments.files):
                run.name = path.removesuffix(".json")
        os.makedirs(arguments.output, exist_ok=True)
        with plt.rc_context(STYLE):
            written = draw_all(runs, arguments.output)
    except (BadLog, OSError) as error:
        sys.exit(f"plot.py: {error}")
    print("wrote " + ", ".join(written))


if __name__ == "__main__":
    main()
