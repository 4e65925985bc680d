"""The JSON files of one run of bench/run.sh, read."""

import json
import math
import os
import statistics
from dataclasses import dataclass, field


NETWORKS = {
    "resnet18": "ResNet-18 (7x7 stem), 32x32, batch 32",
    "resnet18_cifar": "ResNet-18 (3x3 stem), 32x32, batch 32",
    "resnet50": "ResNet-50, 224x224",
    "one_layer": "one layer of 52 MB",
    "tiny_layers": "500 layers of 16x16",
}


@dataclass
class Part:
    """One file of Google Benchmark."""

    context: dict
    rows: list  # as the file has them

    def by_size(self):
        """{operation: {bytes: {contender: row}}} of names operation/contender/bytes."""
        found = {}
        for row in self.rows:
            words = row["name"].split("/")
            if len(words) != 3 or not words[2].isdigit():
                continue
            sizes = found.setdefault(words[0], {})
            sizes.setdefault(int(words[2]), {})[words[1]] = row
        return found

    def by_contender(self):
        """{contender: row} of names operation/contender."""
        return {row["name"].split("/", 1)[1]: row for row in self.rows}

    def wrong(self):
        return [row["name"] for row in self.rows if row.get("wrong", 0) > 0]


@dataclass
class Results:
    folder: str
    machine: dict
    parts: dict = field(default_factory=dict)  # {name: Part}

    def with_prefix(self, prefix):
        return {name: part for name, part in self.parts.items() if name.startswith(prefix)}


def parse(document):
    rows = [row for row in document["benchmarks"] if row.get("run_type", "iteration") == "iteration"]
    return Part(document.get("context", {}), rows)


def load(folder):
    """Throws FileNotFoundError, ValueError naming the file."""
    with open(os.path.join(folder, "machine.json"), encoding="utf-8") as file:
        results = Results(folder, json.load(file))
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".json") or name == "machine.json":
            continue
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            try:
                results.parts[name[: -len(".json")]] = parse(json.load(file))
            except (ValueError, KeyError) as error:
                raise ValueError(f"{os.path.join(folder, name)} is no result of a benchmark "
                                 f"({error}); remove it, and run its part again") from error
    return results


# Student's t for a two-sided 95 % interval, by degrees of freedom (any table of it).
T_95 = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086]


def mean_interval(values):
    """(mean, low, high): the 95 % interval of the mean by Student's t; two values at least."""
    mean = statistics.fmean(values)
    t = T_95[min(len(values) - 2, len(T_95) - 1)]
    half = t * statistics.stdev(values) / len(values) ** 0.5
    return mean, mean - half, mean + half


def median_interval(values):
    """(low, median, high): between which values the true median lies with 95 % or more, as
    bench/harness/comparison.h has it; below 6 values from the least to the largest."""
    ordered, count = sorted(values), len(values)
    below, outside = 0, 0.5**count
    while below < count // 2 and outside <= 0.025:
        below += 1
        outside += math.comb(count, below) * 0.5**count
    left_out = max(below - 1, 0)
    return ordered[left_out], statistics.median(ordered), ordered[count - 1 - left_out]


def over_plain(parts, contender):
    """(ratio, low, high) of a contender's step to the plain one's. Of one run: its own interval over
    blocks. Of several: the interval of their mean."""
    rows = [row for part in parts if (row := part.by_contender().get(contender))]
    rows = [row for row in rows if "over_plain" in row]
    if not rows:
        return None
    if len(rows) == 1:
        return rows[0]["over_plain"], rows[0]["over_plain_low"], rows[0]["over_plain_high"]
    return mean_interval([row["over_plain"] for row in rows])


def training(found):
    """{network: [parts]} of the training parts of 2 ranks, repeats together."""
    networks = {}
    for part in found.with_prefix("training_").values():
        networks.setdefault(part.context.get("network", ""), []).append(part)
    return {name: networks[name] for name in NETWORKS if name in networks}


def step_ratios(parts):
    contenders = dict.fromkeys(name for part in parts for name in part.by_contender())
    ratios = {name: over_plain(parts, name) for name in contenders}
    return {name: ratio for name, ratio in ratios.items() if ratio}
