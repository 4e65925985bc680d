#!/usr/bin/env python3
"""Runs the simulations of many ranks and writes their results as one JSON file and a table.

  scale.py BUILD_FOLDER OUT_FOLDER [--quick] [--network 25g]

--quick ends at 1,024 ranks. Simulations take memory: 10,000 ranks some GiB.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 10_000]
FUSED = 25 << 20
# Messages of a fused allreduce, direct between nodes or a ring of all ranks, grow as ranks squared,
# and the time in which SimGrid shares links among them faster still (64 ranks: minutes).
MOST_RANKS_OF_FUSED = 32
MOST_RANKS_OF_RING = 1024
# Rows of the table, and what stands beside them.
ROWS = [
    "hora/first_by_name",
    "hora/cached",
    "linear/negotiation",
    "linear_of_leaders/negotiation",
    "hora/allreduce/bytes:4",
    f"hora/allreduce/bytes:{FUSED}",
    "flat_ring/allreduce/bytes:4",
    f"flat_ring/allreduce/bytes:{FUSED}",
]


def simulate(build, ranks, network):
    sizes = [4] + ([FUSED] if ranks <= MOST_RANKS_OF_FUSED else [])
    rings = len(sizes) if ranks <= MOST_RANKS_OF_RING else 0
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        command = [os.path.join(HERE, "run_ranks.sh"), build, str(ranks), network, "--sizes",
                   ",".join(map(str, sizes)), "--ring-sizes", str(rings), "--out", out.name]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return json.load(out)


def growth(times):
    """How many times the time grew from the fewest to the most ranks, and what the first and the
    last doubling of the ranks added: equal where it grows as the logarithm."""
    ranks = sorted(times)
    if len(ranks) < 2:
        return "", ""

    def doubling(fewer, more):
        return (times[more] - times[fewer]) / math.log2(more / fewer)

    return (
        f"{times[ranks[-1]] / times[ranks[0]]:.1f}x",
        f"{doubling(*ranks[:2]):.1f}, {doubling(*ranks[-2:]):.1f}",
    )


def table(benchmarks):
    """Rows by contender, columns by ranks; us."""
    times, root = {}, {}
    for one in benchmarks:
        name = one["name"].removeprefix("scale/").rsplit("/ranks:", 1)[0]
        times.setdefault(name, {})[one["ranks"]] = one["real_time"]
        root.setdefault(name, {})[one["ranks"]] = one["root_messages"]
    ranks = sorted({one["ranks"] for one in benchmarks})
    head = " | ".join(f"{r:,}" for r in ranks)
    lines = [f"| us | {head} | grew | a doubling adds: first, last |",
             "|---|" + "---|" * (len(ranks) + 2)]

    def row(label, cells, last):
        lines.append("| " + " | ".join([label, *cells, *last]) + " |")

    for name in ROWS:
        if name in times:
            cells = [f"{times[name][r]:.1f}" if r in times[name] else "" for r in ranks]
            row(f"`{name}`", cells, growth(times[name]))
    for name in ("hora/cached", "linear/negotiation"):
        if name in times:
            cells = [str(root[name].get(r, "")) for r in ranks]
            row(f"messages of rank 0, `{name}`", cells, ["", ""])
    tree, linear = times.get("hora/cached", {}), times.get("linear/negotiation", {})
    cells = [f"{linear[r] / tree[r]:.1f}x" if r in tree and r in linear else "" for r in ranks]
    row("linear over cached", cells, ["", ""])
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("out")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--network", default="25g")
    parser.add_argument("--most-ranks", type=int, default=RANKS[-1])
    arguments = parser.parse_args()
    most = min(1024, arguments.most_ranks) if arguments.quick else arguments.most_ranks
    result = {"context": {}, "benchmarks": []}
    for ranks in [r for r in RANKS if r <= most]:
        print(f"{ranks} ranks", file=sys.stderr, flush=True)
        one = simulate(arguments.build, ranks, arguments.network)
        result["context"] = {**one["context"], "host_seconds": one["context"]["host_seconds"]
                             + result["context"].get("host_seconds", 0)}
        result["benchmarks"] += one["benchmarks"]
    os.makedirs(arguments.out, exist_ok=True)
    base = os.path.join(arguments.out, f"scale-{arguments.network}")
    with open(base + ".json", "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
    print(table(result["benchmarks"]))


if __name__ == "__main__":
    main()
