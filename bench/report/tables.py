"""Results as Markdown. Pure: values in, text out."""

from svg import short_bytes

PEERS = ["mpi", "mpi_out_of_place", "mpi_copy", "gloo", "private_memory"]


def table(columns, rows):
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def digits(value):
    """Three significant digits, without an exponent."""
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def percent_over(ratio):
    return f"{(ratio - 1) * 100:+.1f} %"


def machine(facts):
    names = {"mpi": "MPI", "memory_gib": "memory, GiB", "build_type": "build",
             "changed_since_commit": "changed since that commit"}
    rows = [(names.get(key, key), value) for key, value in facts.items() if key != "busy_share"]
    busy = ", ".join(f"{part} {share:.0%}" for part, share in facts.get("busy_share", {}).items())
    return table(["", ""], rows + ([("cores busy with something else before", busy)] if busy else []))


def sizes(by_size, unit_scale=1.0):
    """One operation: medians in us of every contender, and how many times longer the peers take."""
    contenders = list(dict.fromkeys(name for row in by_size.values() for name in row))
    ours = [name for name in contenders if name.startswith("hora")]
    ratios = [(name, peer) for name in ours for peer in PEERS if peer in contenders]
    rows = []
    for count, row in sorted(by_size.items()):
        times = {name: row[name]["real_time"] * unit_scale for name in row}
        cells = [short_bytes(count)] + [digits(times.get(name)) for name in contenders]
        for name, peer in ratios:
            cells.append(f"{times[peer] / times[name]:.2f}" if name in times and peer in times else "")
        rows.append(cells)
    return table(["bytes"] + [f"{name}, us" for name in contenders] +
                 [f"{peer} / {name}" for name, peer in ratios], rows)


def steps(part, ratios):
    """One network: times, the ratio to plain with its interval ({contender: (ratio, low, high)}),
    and where they go."""
    rows = []
    for name, row in part.by_contender().items():
        ratio = ratios.get(name)
        rows.append([name, digits(row["real_time"]),
                     percent_over(ratio[0]) if ratio else "",
                     f"{percent_over(ratio[1])} to {percent_over(ratio[2])}" if ratio else "",
                     *(digits(row.get(key)) for key in
                       ("forward_ms", "backward_ms", "update_ms", "p99_ms")),
                     *(f"{row.get(key, 0):.0f}" for key in
                       ("page_faults", "switches", "switches_by_force")),
                     f"{row['hidden_share']:.0%}" if "hidden_share" in row else "",
                     f"{row['gradients_mib']:.1f}" if "gradients_mib" in row else ""])
    return table(["contender", "step, ms", "over plain", "95 % interval", "forward", "backward",
                  "update", "p99, ms", "page faults", "switches", "by force", "hidden",
                  "gradients, MiB"], rows)


def ratios(by_contender):
    """{contender: (ratio, low, high)} to each one's own plain step."""
    return table(["contender", "over plain", "95 % interval"],
                 [[name, percent_over(ratio), f"{percent_over(low)} to {percent_over(high)}"]
                  for name, (ratio, low, high) in by_contender.items()])


def negotiation(part):
    rows = []
    for name, row in part.by_contender().items():
        for value, bar, unit in (("real_time", "bar_us", "us"), ("cost_ns", "bar_ns", "ns"),
                                 ("cpu_percent", "bar_percent", "%")):
            if bar in row:
                kept = "yes" if row.get("pass", 0) == 1 else "no"
                rows.append([name, f"{row[value]:.3g} {unit}", f"{row[bar]:g} {unit}", kept])
    return table(["", "measured", "bar", "kept"], rows)


def record_of_calls(part):
    """What the flight record takes of a blocking allreduce of 4 bytes."""
    rows = []
    for name, row in part.by_contender().items():
        if "cost_ns" in row:
            kept = "yes" if row.get("pass", 0) == 1 else "no"
            rows.append([name, *(f"{row[key]:.0f}" for key in
                                 ("off_ns", "cost_ns", "spread_ns", "bar_ns")), kept])
    return table(["", "without, ns", "cost, ns", "spread without, ns", "bar, ns", "kept"], rows)


def record_of_step(part):
    rows = part.by_contender()
    watched, off = rows.get("record_watched"), rows.get("record_off")
    if not watched or not off:
        return ""
    return table(["step without, ms", "with, ms", "over without", "95 % interval"],
                 [[digits(off["real_time"]), digits(watched["real_time"]),
                   percent_over(watched["over_off"]),
                   f"{percent_over(watched['over_off_low'])} to "
                   f"{percent_over(watched['over_off_high'])}"]])


def costs(part, bar=1.0):
    """training_costs: each beside the steps without it that it took turns with; `bar` in percent."""
    rows = []
    for name, row in part.by_contender().items():
        cells = [name, digits(row["real_time"])]
        if "over_plain" in row:
            cells += [percent_over(row["over_plain"]), "yes" if row["cost_percent"] <= bar else "no",
                      percent_over(row["cpu_over_plain"]), digits(row["call_ms"])]
        rows.append(cells + [""] * (6 - len(cells)))
    return table(["", "step, ms", "over without", f"at most {bar:g} %", "processor time over",
                  "calls, ms a step"], rows)


def two_hosts(parts, rate):
    """allreduce over a link of `rate` bits a second between 2 hosts: the link carries 2(m-1)/m = 1
    times the tensor in each direction."""
    rows = []
    for name, part in parts.items():
        for count, row in sorted(part.by_size().get("allreduce", {}).items()):
            bound = count * 8 / rate * 1e6
            rows.append([name.replace("two_hosts_", ""), short_bytes(count), digits(bound / 1e3)] +
                        [f"{digits(row[one]['real_time'] / 1e3)} ({bound / row[one]['real_time']:.0%})"
                         if one in row else "" for one in ("hora_bucket", "hora", "mpi")])
    return table(["MPI's algorithm", "bytes", "bound, ms", "hora_bucket, ms (of the bound)", "hora",
                  "mpi"], rows)
