#!/usr/bin/env python3
"""Step time and efficiency at many nodes, from a measured step (see model.py).

  forecast.py table TRACE.json NETWORK.json     a Markdown table of 16 to 1,024 nodes
  forecast.py check TRACE.json MEASURED.json    beside measured steps; exit code 1 beyond 15 %
"""
import argparse
import json
import sys

from model import forecast

NODES = [1, 2, 4, 16, 32, 64, 128, 256, 512, 1024]
BOUND = 0.15


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def table(trace, networks):
    lines = [
        "| network | nodes | ranks | step, ms | efficiency | hidden |",
        "|---|---|---|---|---|---|",
    ]
    for network in networks["networks"]:
        for nodes in NODES:
            at = dict(network, nodes=nodes)
            step = forecast(trace, at)
            lines.append(
                f"| {network['name']} | {nodes} | {nodes * network['ranks_per_node']} "
                f"| {step['step_ms']:.1f} | {100 * step['efficiency']:.0f} % "
                f"| {100 * step['hidden_share']:.0f} % |"
            )
    return "\n".join(lines)


def check(trace, measured):
    """(table, whether all are within the bound)"""
    lines = ["| ranks | cores | measured, ms | forecast, ms | off by |", "|---|---|---|---|---|"]
    within = True
    for run in measured["runs"]:
        network = dict(measured["network"], nodes=1, ranks_per_node=run["ranks"])
        step = forecast(trace, network)["step_ms"]
        off = step / run["step_ms"] - 1
        within = within and abs(off) <= BOUND
        lines.append(
            f"| {run['ranks']} | {network['cores_per_node']} | {run['step_ms']:.1f} "
            f"| {step:.1f} | {100 * off:+.1f} % |"
        )
    return "\n".join(lines), within


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["table", "check"])
    parser.add_argument("trace")
    parser.add_argument("other")
    arguments = parser.parse_args()
    trace, other = read(arguments.trace), read(arguments.other)
    if arguments.command == "table":
        print(table(trace, other))
        return 0
    text, within = check(trace, other)
    print(text)
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
