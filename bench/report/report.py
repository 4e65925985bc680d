"""Markdown, plots and the README's performance section from the JSON of bench/run.sh.

usage: report.py RESULTS_FOLDER [--readme README.md]

Writes report.md and *.svg into the folder. With --readme also what stands between README.md's
performance markers: no figure there is typed by hand.
"""

import argparse
import os
import sys

import results
import svg
import tables
from machine import BUSY_SHARE

BEGIN, END = "<!-- performance begin -->", "<!-- performance end -->"
LINK_RATE = 1e9  # bits a second, as run.sh's part two_hosts sets it
NETWORKS = {
    "resnet18": "ResNet-18 (7x7 stem), 32x32, batch 32",
    "resnet18_cifar": "ResNet-18 (3x3 stem), 32x32, batch 32",
    "resnet50": "ResNet-50, 224x224",
    "one_layer": "one layer of 52 MB",
    "tiny_layers": "500 layers of 16x16",
}


def _network(part):
    return part.context.get("network", "")


def training(found):
    """{network: [parts]} of the training parts of 2 ranks, repeats together."""
    networks = {}
    for part in found.with_prefix("training_").values():
        networks.setdefault(_network(part), []).append(part)
    return {name: networks[name] for name in NETWORKS if name in networks}


def step_ratios(parts):
    contenders = dict.fromkeys(name for part in parts for name in part.by_contender())
    ratios = {name: results.over_plain(parts, name) for name in contenders}
    return {name: ratio for name, ratio in ratios.items() if ratio}


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
    for network, parts in training(found).items():
        rows = [(name, *((value - 1) * 100 for value in ratio))
                for name, ratio in step_ratios(parts).items()]
        if rows:
            charts[f"training_{network}.svg"] = svg.interval_chart(
                f"{NETWORKS[network]}: a step over the bare optimizer's",
                "percent, with the 95 % interval", rows, "plain LibTorch")
    return charts


def report(found, charts):
    text = ["# Results of bench/run.sh\n", "Written by bench/report/report.py from the JSON files "
            "here; [how it is measured](../../README.md).\n", tables.machine(found.machine)]
    wrong = [f"{name}: {row}" for name, part in found.parts.items() for row in part.wrong()]
    if wrong:
        text.append("**Wrong results**: " + ", ".join(wrong) + "\n")
    for name, part in found.parts.items():
        context = part.context
        where = f"{context.get('ranks', '?')} ranks, {context.get('nodes', '?')} node(s)"
        if int(context.get("ranks", 0)) > found.machine["cores"]:
            where += ", oversubscribed: more ranks than cores"
        if name.startswith(("allreduce", "collectives")):
            text.append(f"## {name}\n{part.context.get('type', 'float')}, {where}; malloc's thresholds: "
                        f"{context.get('malloc_thresholds', '?')}. Medians of the slowest rank.\n")
            for operation, by_size in part.by_size().items():
                text += [f"### {operation}\n", tables.sizes(by_size)]
        elif name.startswith("negotiation"):
            text += [f"## {name}\n{where}\n", tables.negotiation(part)]
    for network, parts in training(found).items():
        runs = f", {len(parts)} whole runs (times are the first's)" if len(parts) > 1 else ""
        text += [f"## training_step: {NETWORKS[network]}{runs}\n",
                 tables.steps(parts[0], step_ratios(parts))]
    ranks = found.with_prefix("ranks_")
    if ranks:
        text.append("## Weak scaling: ResNet-18, the same batch a rank\n")
        for part in ranks.values():
            text += [f"### {part.context['ranks']} rank(s)\n",
                     tables.steps(part, step_ratios([part]))]
    costs = found.parts.get("costs")
    if costs:
        text += [f"## What accompanies a training step: {costs.context.get('ranks', '?')} ranks, batch "
                 f"{costs.context.get('batch', '?')}, a checkpoint every "
                 f"{costs.context.get('checkpoint every', '?')}\n", tables.costs(costs)]
    hosts = found.with_prefix("two_hosts")
    if hosts:
        text += ["## Two emulated hosts, 1 Gbit/s between them\n", tables.two_hosts(hosts, LINK_RATE)]
    horovod = found.with_prefix("horovod")
    if horovod:
        text += ["## Horovod with PyTorch beside hora, in turns: ResNet-18 (7x7 stem)\n",
                 tables.ratios(step_ratios(list(horovod.values())))]
    text += ["## Plots\n"] + [f"![{name}]({name})\n" for name in charts]
    return "\n".join(text)


def readme_section(found, charts, path):
    """`path`: of the folder, from README.md."""
    machine = found.machine
    text = [f"{machine['processor']}, {machine['cores']} cores, {machine['mpi']}, "
            f"{machine['date']}; each row's contenders took turns in one run. "
            f"[All results]({path}/report.md), [how they are measured](bench/README.md).\n"]
    busy = [part for part, share in machine.get("busy_share", {}).items() if share > BUSY_SHARE]
    if busy:
        text.append(f"**Something else ran on the machine before {', '.join(busy)}: their figures say "
                    "little.**\n")
    networks = training(found)
    if networks:
        columns = list(dict.fromkeys(
            name for parts in networks.values() for name in step_ratios(parts)))
        rows = []
        for network, parts in networks.items():
            ratios = step_ratios(parts)
            plain = parts[0].by_contender().get("plain", {}).get("real_time")
            rows.append([NETWORKS[network], f"{tables.digits(plain)} ms"] + [
                f"{tables.percent_over(ratios[name][0])} "
                f"({(ratios[name][1] - 1) * 100:+.1f} to {(ratios[name][2] - 1) * 100:+.1f})"
                if name in ratios else "" for name in columns])
        ranks = next(iter(networks.values()))[0].context.get("ranks", "?")
        text += [f"A training step on {ranks} ranks over that of the bare optimizer without "
                 "communication (95 % interval):\n",
                 tables.table(["network", "plain"] + columns, rows)]
    allreduce = found.parts.get("allreduce")
    if allreduce:
        rows = []
        for count, row in sorted(allreduce.by_size().get("allreduce", {}).items()):
            if count < 64 * 1024 or "hora_bucket" not in row:
                continue
            own = row["hora_bucket"]["real_time"]
            rows.append([svg.short_bytes(count), tables.digits(own)] +
                        [f"{row[peer]['real_time'] / own:.2f}" if peer in row else ""
                         for peer in ("hora", "mpi", "mpi_copy", "gloo", "private_memory")])
        text += [f"allreduce of float32, {allreduce.context.get('ranks', '?')} ranks of one node: a "
                 "bucket's time, and how many times longer the others take (`mpi_copy`: copies in "
                 "and out; `private_memory`: the same traffic without other ranks):\n",
                 tables.table(["bytes", "bucket, us", "hora, plain memory", "mpi", "mpi_copy",
                               "gloo", "private_memory"], rows)]
    for name in ("training_resnet18.svg", "allreduce_time.svg"):
        if name in charts:
            text.append(f"![{name}]({path}/{name})\n")
    return "\n".join(text)


def put_between_markers(document, section):
    """`document` with `section` between the markers. Throws ValueError where they are missing."""
    if document.count(BEGIN) != 1 or document.count(END) != 1 or \
            document.index(BEGIN) > document.index(END):
        raise ValueError(f"the README needs one line {BEGIN} and after it one line {END}")
    head, rest = document.split(BEGIN)
    return head + BEGIN + "\n" + section.strip() + "\n" + END + rest.split(END)[1]


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
            path = os.path.relpath(options.folder, os.path.dirname(os.path.abspath(options.readme)))
            document = put_between_markers(document, readme_section(found, charts, path))
            with open(options.readme, "w", encoding="utf-8") as file:
                file.write(document)
    except (OSError, ValueError) as error:
        print(f"report.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
