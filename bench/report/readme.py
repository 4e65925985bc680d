"""The README's performance section, from the JSON of bench/run.sh and the stored forecast. No figure
there is typed by hand."""

import json
import os
import sys

import results
import svg
import tables
from machine import BUSY_SHARE

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "scale", "forecast"))
import forecast  # noqa: E402

BEGIN, END = "<!-- performance begin -->", "<!-- performance end -->"


def over_plain_cell(ratio):
    if ratio is None:
        return ""
    value, low, high = ((one - 1) * 100 for one in ratio)
    return f"{value:+.1f} % ({low:+.1f} to {high:+.1f})"


def record_costs(found):
    """A sentence, or nothing where the part `record` has not been run."""
    calls = found.parts["record"].by_contender() if "record" in found.parts else {}
    steps = found.parts["record_step"].by_contender() if "record_step" in found.parts else {}
    costs = []
    for name, words in (("flight_record", ""), ("flight_record_watched", " under `horarun --watch`")):
        if "cost_ns" in calls.get(name, {}):
            costs.append(f"{calls[name]['cost_ns']:.0f} ns of a blocking allreduce of 4 bytes{words}")
    if "over_off" in steps.get("record_watched", {}):
        row = steps["record_watched"]
        ratio = tuple(row[key] for key in ("over_off", "over_off_low", "over_off_high"))
        costs.append(f"{over_plain_cell(ratio)} of a ResNet-18 step")
    if not costs:
        return ""
    return "The flight record and the ledger of who came last take " + ", ".join(costs) + ".\n"


def forecasts(folder):
    """Step time at many nodes by `folder`'s forecast-trace.json, with what is assumed; nothing where
    there is none."""
    try:
        with open(os.path.join(folder, "forecast-trace.json"), encoding="utf-8") as file:
            trace = json.load(file)
        with open(os.path.join(folder, "forecast-measured.json"), encoding="utf-8") as file:
            measured = json.load(file)
    except FileNotFoundError:
        return ""
    networks = forecast.stored_networks()
    return "\n".join([
        "At many nodes, **a forecast and no measurement**: " + forecast.assumptions(trace, networks) +
        " Beside measured steps on one machine it is off by " +
        forecast.deviations(trace, measured) +
        ". [Method](bench/scale/README.md#forecast), "
        "[all of it](bench/results/forecast.md).\n",
        forecast.summary(trace, networks) + "\n"])


def section(found, charts, path, of_many_nodes=""):
    """`path`: of the folder, from README.md."""
    machine = found.machine
    text = [f"{machine['processor']}, {machine['cores']} cores, {machine['mpi']}, "
            f"{machine['date']}; what is compared took turns in one run. "
            f"[All results]({path}/report.md), [how they are measured](bench/README.md).\n"]
    busy = [part for part, share in machine.get("busy_share", {}).items() if share > BUSY_SHARE]
    if busy:
        text.append(f"**Something else ran on the machine before {', '.join(busy)}: their figures say "
                    "little.**\n")
    networks = results.training(found)
    if networks:
        ratios = {network: results.step_ratios(parts) for network, parts in networks.items()}
        contenders = list(dict.fromkeys(name for one in ratios.values() for name in one))
        times = [parts[0].by_contender().get("plain", {}).get("real_time")
                 for parts in networks.values()]
        rows = [["plain"] + [f"{tables.digits(time)} ms" for time in times]]
        for name in contenders:
            rows.append([name] + [over_plain_cell(one.get(name)) for one in ratios.values()])
        ranks = next(iter(networks.values()))[0].context.get("ranks", "?")
        text += [f"A training step on {ranks} ranks over that of the bare optimizer without "
                 "communication (95 % interval):\n",
                 tables.table([""] + [results.NETWORKS[network] for network in networks], rows)]
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
    text += [part for part in (record_costs(found),) if part]
    for name in ("training_resnet18.svg", "allreduce_time.svg"):
        if name in charts:
            text.append(f"![{name}]({path}/{name})\n")
    text += [part for part in (of_many_nodes,) if part]
    return "\n".join(text)


def put_between_markers(document, section):
    """`document` with `section` between the markers. Throws ValueError where they are missing."""
    if document.count(BEGIN) != 1 or document.count(END) != 1 or \
            document.index(BEGIN) > document.index(END):
        raise ValueError(f"the README needs one line {BEGIN} and after it one line {END}")
    head, rest = document.split(BEGIN)
    return head + BEGIN + "\n" + section.strip() + "\n" + END + rest.split(END)[1]
