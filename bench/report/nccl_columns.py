"""A file of allreduce_perf or collectives_perf in the columns of nccl-tests, for what reads those:
out of place and in place side by side. usage: nccl_columns.py FILE [CONTENDER...]

nccl-tests: https://github.com/NVIDIA/nccl-tests. hora's allreduce and broadcast are in place, its
other collectives out of place; MPI's allreduce is measured both ways; what there is not is N/A.
"""

import json
import sys

import results

HEAD = ("#       size         count      type   redop    root     time   algbw   busbw #wrong"
        "     time   algbw   busbw #wrong\n"
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
        "     (us)  (GB/s)  (GB/s)       ")
# The contenders whose measurement out of place has a name of its own.
OUT_OF_PLACE = {"mpi": "mpi_out_of_place"}
IN_PLACE = ("allreduce", "broadcast")


def half(row):
    """The four columns of one way; `row` None: not measured."""
    if row is None:
        return f" {'N/A':>8} {'N/A':>7} {'N/A':>7} {'N/A':>6}"
    return (f" {row['real_time']:8.2f} {row['algbw']:7.2f} {row['busbw']:7.2f} "
            f"{int(row.get('wrong', 0)):6d}")


def line(operation, count, out_of_place, in_place):
    row = out_of_place or in_place
    kind, redop = row["label"].split()
    root = "0" if operation == "broadcast" else "-1"
    return (f"{count:12d}  {int(row['count']):12d}  {kind:>8}  {redop:>6}  {root:>6}"
            + half(out_of_place) + half(in_place))


def columns(part, contenders):
    """The text for all operations, contender by contender; none named: all."""
    text = []
    for operation, by_size in part.by_size().items():
        names = dict.fromkeys(name for row in by_size.values() for name in row)
        for name in contenders or [one for one in names if one not in OUT_OF_PLACE.values()]:
            if name not in names:
                continue
            text += [f"# {operation}, {name}: {part.context.get('ranks', '?')} ranks", HEAD]
            for count, row in sorted(by_size.items()):
                if name not in row:
                    continue
                if operation in IN_PLACE:
                    text.append(line(operation, count, row.get(OUT_OF_PLACE.get(name)), row[name]))
                else:
                    text.append(line(operation, count, row[name], None))
    return "\n".join(text) + "\n"


def main(arguments):
    if not arguments or arguments[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    with open(arguments[0], encoding="utf-8") as file:
        print(columns(results.parse(json.load(file)), arguments[1:]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
