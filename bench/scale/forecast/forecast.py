#!/usr/bin/env python3
"""Step time and efficiency at many nodes, from a measured step (see model.py).

  forecast.py table TRACE.json NETWORK.json     a Markdown table of 16 to 1,024 nodes
  forecast.py check TRACE.json MEASURED.json    beside measured steps; exit code 1 beyond 15 %
"""
import argparse
import json
import os
import sys

from model import chunk_bytes, forecast

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


def stored_networks():
    """Those of networks.json."""
    return read(os.path.join(os.path.dirname(os.path.abspath(__file__)), "networks.json"))


def summary(trace, networks):
    """From 16 nodes on: a row for each number of nodes, a column for each network."""
    networks = networks["networks"]
    lines = [
        "| nodes | " + " | ".join(f"{one['name']}: step, ms (efficiency)" for one in networks) + " |",
        "|---|" + "---|" * len(networks),
    ]
    for nodes in NODES:
        if nodes < 16:
            continue
        steps = [forecast(trace, dict(one, nodes=nodes)) for one in networks]
        cells = [f"{step['step_ms']:.0f} ({100 * step['efficiency']:.0f} %)" for step in steps]
        lines.append(f"| {nodes} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def assumptions(trace, networks):
    """What the forecast takes for granted, in words."""

    def of_all(key):
        return ", ".join(dict.fromkeys(f"{one[key]:g}" for one in networks["networks"]))

    return (
        f"{trace['what']}, whose step as measured on one rank takes {trace['step_ms']:.0f} ms "
        f"without communication. Assumed: nodes of {of_all('cores_per_node')} cores with "
        f"{of_all('ranks_per_node')} ranks and {of_all('memory_gb_s')} GB/s of memory traffic; "
        f"{of_all('link_gbit')} Gbit/s a node and direction, {of_all('latency_us')} us one way, "
        f"{of_all('message_us')} us a message of its sender and of its receiver; a switch that never "
        f"blocks; the `direct` algorithm in chunks of {chunk_bytes(1) >> 20} MiB, at {NODES[-1]} nodes of "
        f"{chunk_bytes(NODES[-1]) >> 20} MiB; no rank slower than another, no other traffic. Efficiency is the throughput of a rank over that of one rank "
        "without communication that has a node to itself."
    )


def compared(trace, measured):
    """[(run, forecast of its step in ms, by what share that is off)]"""
    found = []
    for run in measured["runs"]:
        network = dict(measured["network"], nodes=1, ranks_per_node=run["ranks"])
        step = forecast(trace, network)["step_ms"]
        found.append((run, step, step / run["step_ms"] - 1))
    return found


def deviations(trace, measured):
    return ", ".join(
        f"{100 * off:+.1f} % ({run['ranks']} rank{'' if run['ranks'] == 1 else 's'})"
        for run, _, off in compared(trace, measured)
    )


def check(trace, measured):
    """(table, whether all are within the bound)"""
    lines = ["| ranks | cores | measured, ms | forecast, ms | off by |", "|---|---|---|---|---|"]
    within = True
    for run, step, off in compared(trace, measured):
        within = within and abs(off) <= BOUND
        lines.append(
            f"| {run['ranks']} | {measured['network']['cores_per_node']} | {run['step_ms']:.1f} "
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
