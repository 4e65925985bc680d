"""Markdown, plots and the README's table of performance from the JSON of bench/run.sh.

usage: report.py RESULTS_FOLDER [--readme README.md]

Writes report.md and *.svg into the folder. With --readme also what stands between README.md's
performance markers: no figure there is typed by hand.
"""

import argparse
import os
import sys

import readme
import results
import svg
import tables

RAISED = "raised by hora::init"  # malloc's thresholds, as bench/harness/sweep.cpp says it
LINK_RATE = 1e9  # bits a second, as run.sh's part two_hosts sets it


def plots(found):
    """{file name: text}."""
    charts = {}
    for name, part in found.parts.items():
        if name.split("_")[0] not in ("allreduce", "collectives"):
            continue
        for operation, by_size in part.by_size().items():
            if operation == "resnet50":
                continue
            series = {}
            for count, row in by_size.items():
                for contender, one in row.items():
                    series.setdefault(contender, []).append((count, one["real_time"]))
            suffix = name.split("_", 1)[1] + "_" if "_" in name else ""
            ranks, nodes = part.context.get("ranks", "?"), part.context.get("nodes", "?")
            charts[f"{operation}_{suffix}time.svg"] = svg.line_chart(
                f"{operation}, {part.context.get('type', 'float')}: {ranks} ranks, {nodes} node(s)",
                "us", series)
    for network, parts in results.training(found).items():
        rows = [(name, *((value - 1) * 100 for value in ratio))
                for name, ratio in results.step_ratios(parts).items()]
        if rows:
            charts[f"training_{network}.svg"] = svg.interval_chart(
                f"{results.NETWORKS[network]}: a step over the bare optimizer's",
                "percent, with the 95 % interval", rows, "plain LibTorch")
    return charts


def placed(part, machine):
    context = part.context
    where = f"{context.get('ranks', '?')} ranks, {context.get('nodes', '?')} node(s)"
    if int(context.get("ranks", 0)) > machine["cores"]:
        where += ", oversubscribed: more ranks than cores"
    return where


def report(found, charts):
    text = ["# Results of bench/run.sh\n", "Made by bench/report/report.py of the JSON files here. [How it is "
            "measured](../../README.md), [bars and bounds](../../../docs/performance.md).\n",
            tables.machine(found.machine),
            "Medians of the slowest rank: hora's in us, peers' as multiples of `hora_bucket`'s.\n"]
    wrong = [f"{name}: {row}" for name, part in found.parts.items() for row in part.wrong()]
    if wrong:
        text.append("**Wrong results**: " + ", ".join(wrong) + "\n")
    for name, part in found.parts.items():
        if name.startswith(("allreduce", "collectives")):
            thresholds = part.context.get("malloc_thresholds", RAISED)
            text += [f"## {name}\n{part.context.get('type', 'float')}, {placed(part, found.machine)}" +
                     (f"; malloc's thresholds: {thresholds}" if thresholds != RAISED else "") + "\n",
                     tables.sizes(part.by_size())]
    waiting = [part for name, part in found.parts.items() if name.startswith(("negotiation", "record"))]
    if waiting:
        text += ["## Negotiation and flight record\nMeasured, and the bar; bold: missed.\n",
                 tables.negotiation(waiting)]
    for network, parts in results.training(found).items():
        runs = f", {len(parts)} whole runs (times are the first's)" if len(parts) > 1 else ""
        text += [f"## training_step: {results.NETWORKS[network]}{runs}\n",
                 tables.steps(parts[0], results.step_ratios(parts))]
    ranks = found.with_prefix("ranks_")
    if ranks:
        text.append("## Weak scaling: ResNet-18, the same batch a rank\n")
        for part in ranks.values():
            text += [f"### {part.context['ranks']} rank(s)\n",
                     tables.steps(part, results.step_ratios([part]))]
    hosts = found.with_prefix("two_hosts")
    if hosts:
        text += ["## Two emulated hosts, 1 Gbit/s between them\n", tables.two_hosts(hosts, LINK_RATE)]
    horovod = found.with_prefix("horovod")
    if horovod:
        text += ["## Horovod with PyTorch beside hora, in turns: ResNet-18 (7x7 stem)\n",
                 tables.ratios(results.step_ratios(list(horovod.values())))]
    text += ["## Plots\n"] + [f"![{name}]({name})\n" for name in charts]
    return "\n".join(text)


def main(arguments):
    parser = argparse.ArgumentParser(description="Markdown and plots from bench/run.sh's JSON")
    parser.add_argument("folder")
    parser.add_argument("--readme", help="whose performance section is written, too")
    options = parser.parse_args(arguments)
    try:
        found = results.load(options.folder)
        charts = plots(found)
        for name, text in charts.items():
            with open(os.path.join(options.folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        with open(os.path.join(options.folder, "report.md"), "w", encoding="utf-8") as file:
            file.write(report(found, charts))
        if options.readme:
            with open(options.readme, encoding="utf-8") as file:
                document = file.read()
            document = readme.put_between_markers(document, readme.section(found))
            with open(options.readme, "w", encoding="utf-8") as file:
                file.write(document)
    except (OSError, ValueError) as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
