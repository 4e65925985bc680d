"""Results as Markdown. Pure: values in, text out."""

from svg import short_bytes

# Sizes that tables leave out are in the JSON and the plots.
APART = 64  # of neighbouring rows
MOST_OF_LATENCY = 256  # up to it all take as long as the shortest
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


def signed(ratio):
    """1.072 -> "+7.2"."""
    return f"{(ratio - 1) * 100:+.1f}"


def chosen_sizes(counts):
    """The least and the largest, and between them those that are far enough apart."""
    chosen = [max(counts)]
    for count in sorted(counts, reverse=True):
        if count * APART <= chosen[-1] and count > MOST_OF_LATENCY:
            chosen.append(count)
    return sorted({*chosen, min(counts)})


def sizes(operations):
    """{operation: by_size}: hora's medians in us, and how many times as long as hora_bucket its
    peers take."""
    measured = {name for by_size in operations.values() for row in by_size.values() for name in row}
    contenders = [name for name in SHOWN if name in measured]
    rows = []
    for operation, by_size in operations.items():
        for count in chosen_sizes(by_size):
            times = {name: row["real_time"] for name, row in by_size[count].items()}
            rows.append([f"{operation} {short_bytes(count)}"] + [
                digits(times.get(name)) if name.startswith("hora") else
                digits(times[name] / times["hora_bucket"]) if {name, "hora_bucket"} <= set(times) else ""
                for name in contenders])
    return table(["bytes"] + [f"{name}, us" if name.startswith("hora") else name for name in contenders],
                 rows)


def steps(part, ratios):
    """One network: times, and the ratio to plain with its interval ({contender: (ratio, low, high)})."""
    rows = []
    for name, row in part.by_contender().items():
        ratio = ratios.get(name)
        rows.append([name, digits(row["real_time"]), signed(ratio[0]) if ratio else "",
                     f"{signed(ratio[1])} to {signed(ratio[2])}" if ratio else "",
                     f"{row['hidden_share']:.0%}" if "hidden_share" in row else ""])
    return table(["contender", "step, ms", "over plain, %", "95 % interval", "hidden"], rows)


def ratios(by_contender):
    """{contender: (ratio, low, high)} to each one's own plain step."""
    return table(["contender", "over plain", "95 % interval"],
                 [[name, percent_over(ratio), f"{percent_over(low)} to {percent_over(high)}"]
                  for name, (ratio, low, high) in by_contender.items()])


def negotiation(parts):
    """Negotiation and flight record of all parts, a column for each number of nodes: measured, and
    the bar; bold where it is missed."""
    nodes = sorted({part.context.get("nodes", "?") for part in parts})
    cells = {}  # {name: {nodes: text}}
    for part in parts:
        for name, row in part.by_contender().items():
            for value, bar, unit in (("real_time", "bar_us", "us"), ("cost_ns", "bar_ns", "ns"),
                                     ("cpu_percent", "bar_percent", "%")):
                if bar in row:
                    text = f"{row[value]:.3g} {unit}"
                    text = text if row.get("pass", 0) == 1 else f"**{text}**"
                    cells.setdefault(name, {})[part.context.get("nodes", "?")] = f"{text} ({row[bar]:g})"
    return table([""] + [f"{count} node(s)" for count in nodes],
                 [[name] + [row.get(count, "") for count in nodes] for name, row in cells.items()])


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
