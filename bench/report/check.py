"""Compares ratios of one run with stored bounds (bench/results/bounds.json; see bench/check.sh).

usage: check.py BOUNDS BUILD_FOLDER [LAUNCHER...]

LAUNCHER starts a program on ranks, `-np N` is added to it. A bound fails where it is missed in each
of three tries: what a busy machine does once passes, a real regression does not.
"""

import json
import os
import subprocess
import sys
import tempfile

import machine

TRIES = 3
SECONDS = 180  # of one try of one program: far more than it takes


def value_of(bound, rows):
    """The bound's figure, from {name: row}. Throws KeyError with what is missing."""
    row = rows[bound["row"]]
    if "counter" in bound:
        return row[bound["counter"]]
    return row["real_time"] / rows[bound["over"]]["real_time"]


def kept(bound, value):
    return bound.get("at_least", value) <= value <= bound.get("at_most", value)


def text_of(bound):
    figure = bound.get("counter") or f"over {bound['over']}"
    limits = [f"{words} {bound[key]:g}" for key, words in
              (("at_least", "at least"), ("at_most", "at most")) if key in bound]
    return f"{bound['row']} {figure}: {', '.join(limits)}"


def missed_in_every_try(bounds, measure, tries=TRIES):
    """[(bound, values)] of those that no try kept; `measure` gives {name: row}. Stops as soon as
    every bound was kept once."""
    left = {index: [] for index in range(len(bounds))}
    for _ in range(tries):
        rows = measure()
        for index in list(left):
            value = value_of(bounds[index], rows)
            left[index].append(value)
            if kept(bounds[index], value):
                del left[index]
        if not left:
            break
    return [(bounds[index], values) for index, values in left.items()]


def run(command):
    """{name: row} of one run. Throws RuntimeError with the end of its output."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "results.json")
        try:
            done = subprocess.run([*command, f"--benchmark_out={path}"], capture_output=True,
                                  text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"took more than {SECONDS} s") from error
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
        with open(path, encoding="utf-8") as file:
            return {row["name"]: row for row in json.load(file)["benchmarks"]}


def main(arguments):
    if len(arguments) < 3:
        print(__doc__, file=sys.stderr)
        return 2
    with open(arguments[0], encoding="utf-8") as file:
        programs = json.load(file)["programs"]
    status = 0
    for one in programs:
        path = os.path.join(arguments[1], "bench", one["program"])
        if not os.path.exists(path):
            needed = machine.cached(arguments[1], one.get("needs", "")) != "OFF"
            print(f"{one['program']}: " + ("FAILED: not built" if needed else
                                           f"left out: this build has {one['needs']} off"))
            status = 1 if needed else status
            continue
        command = [*arguments[2:], "-np", str(one["ranks"]), path, *one["arguments"]]
        try:
            missed = missed_in_every_try(one["bounds"], lambda: run(command))
        except (RuntimeError, KeyError) as error:
            print(f"{one['program']}: FAILED: {error}")
            status = 1
            continue
        print(f"{one['program']}: {len(one['bounds']) - len(missed)} of {len(one['bounds'])} kept")
        for bound, values in missed:
            status = 1
            print(f"  MISSED in {len(values)} tries: {text_of(bound)}; measured "
                  + ", ".join(f"{value:.3g}" for value in values))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
