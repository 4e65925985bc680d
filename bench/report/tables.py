"""Results as Markdown. Pure: values in, text out."""

from svg import short_bytes

# Of the sizes; the others are in the JSON alone.
MOST_OF_LATENCY = 256
SHOWN = ["hora_bucket", "hora", "mpi", "mpi_copy", "gloo", "private_memory"]


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
    names = {"mpi": "MPI", "memory_gib": "GiB of memory", "build_type": "build"}
    left_out = ("busy_share", "changed_since_commit", "system", "kernel")
    said = ", ".join(f"{names.get(key, key)} {value}" for key, value in facts.items() if key not in left_out)
    busy = ", ".join(f"{part} {share:.0%}" for part, share in facts.get("busy_share", {}).items() if share >= 0.05)
    return said + (f"; cores busy with something else before {busy}" if busy else "") + ".\n"


def sizes(by_size, unit_scale=1.0):
    """One operation: medians in us of every contender, and how many times longer MPI takes."""
    contenders = list(dict.fromkeys(name for row in by_size.values() for name in row if name in SHOWN))
    ratios = [(name, "mpi") for name in contenders if name.startswith("hora") and "mpi" in contenders]
    rows = []
    for count, row in sorted(by_size.items()):
        if count <= MOST_OF_LATENCY and count != min(by_size):
            continue  # all take as long as the shortest
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
                     *(digits(row.get(key)) for key in ("backward_ms", "update_ms", "p99_ms")),
                     f"{row['hidden_share']:.0%}" if "hidden_share" in row else ""])
    return table(["contender", "step, ms", "over plain", "95 % interval", "backward", "update",
                  "p99, ms", "hidden"], rows)


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
