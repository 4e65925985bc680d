"""The README's table of performance, from the JSON of bench/run.sh. No figure there is typed by hand."""

import results
import tables
from machine import BUSY_SHARE

BEGIN, END = "<!-- performance begin -->", "<!-- performance end -->"


def over_plain_cell(ratio):
    return f"{(ratio[0] - 1) * 100:+.1f} %"


def steps(found):
    networks = results.training(found)
    if "resnet18" not in networks:
        return []
    ratios = results.step_ratios(networks["resnet18"])
    peers = ", ".join(f"{words} {over_plain_cell(ratios[name])}"
                      for name, words in (("c10d_gloo", "DDP's reducer on gloo"),
                                          ("mpi_blocking", "blocking MPI")) if name in ratios)
    named = (("hora_arena", "ResNet-18 step over plain LibTorch", peers),
             ("hora_one_pass", "the same, averaged and updated in one pass", ""))
    return [[words, over_plain_cell(ratios[name]), beside]
            for name, words, beside in named if name in ratios]


def allreduces(found):
    if "allreduce" not in found.parts:
        return []
    by_size = found.parts["allreduce"].by_size().get("allreduce", {})
    rows = []
    for count, name, where in ((1 << 16, "hora_bucket", "in a bucket"), (1 << 22, "hora_bucket", "in a bucket"),
                               (1 << 22, "hora", "of plain memory")):
        row = by_size.get(count, {})
        if name not in row:
            continue
        own = row[name]["real_time"]
        peers = ", ".join(f"{words} {tables.digits(row[peer]['real_time'] / own)} times as long"
                          for peer, words in (("mpi", "MPI"), ("gloo", "gloo")) if peer in row)
        rows.append([f"allreduce of {tables.short_bytes(count)}iB {where}", f"{tables.digits(own)} us", peers])
    return rows


def idle(found):
    row = found.parts["negotiation"].by_contender().get("cpu_nothing_submitted") \
        if "negotiation" in found.parts else None
    return [["core of a rank with nothing submitted", f"{row['cpu_percent']:.2f} %", ""]] if row else []


def section(found):
    machine = found.machine
    busy = [part for part, share in machine.get("busy_share", {}).items() if share > BUSY_SHARE]
    said = f"**Something else ran on the machine before {', '.join(busy)}: their figures say little.**\n\n"
    return (said if busy else "") + f"{machine['processor']}, {machine['cores']} cores, {machine['mpi']}, {machine['date']}:\n\n" + \
        tables.table(["2 ranks", "hora", "peers"], steps(found) + allreduces(found) + idle(found))


def put_between_markers(document, section):
    """`document` with `section` between the markers. Throws ValueError where they are missing."""
    if document.count(BEGIN) != 1 or document.count(END) != 1 or \
            document.index(BEGIN) > document.index(END):
        raise ValueError(f"the README needs one line {BEGIN} and after it one line {END}")
    head, rest = document.split(BEGIN)
    return head + BEGIN + "\n" + section.strip() + "\n" + END + rest.split(END)[1]
