#!/usr/bin/env python3
"""Makes a trace for model.py of what bench/training_step has measured, and the runs to check it by.

  measured_step.py TIMELINE.json RUN.json... --trace TRACE.json --measured MEASURED.json
                   --cores CORES --memory-gb-s FIGURE [--contender hora_copies]

TIMELINE: of one rank (HORA_TIMELINE), which says when each bucket becomes ready. RUN: files of
--benchmark_out, one with one rank among them; the one with as many ranks as cores says by how much
computing ranks slow one another down.
"""
import argparse
import json
import statistics
import sys


def buckets_of(events, backward_end_ms):
    """By name `hora.gradients...`, in the order in which they become ready: medians over steps, of
    which the last bucket is ready at the end of backward."""
    names = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    ready, sizes = {}, {}
    for event in events:
        name = names.get(event.get("tid"), "")
        if not name.startswith("hora.gradients."):
            continue
        if event["name"] == "negotiate":
            ready.setdefault(name, []).append(event["ts"])
        elif event["name"] == "allreduce":
            sizes[name] = event["args"]["bytes"]
    if not ready:
        raise ValueError("the timeline has no bucket: no event `negotiate` of hora.gradients")
    steps = min(len(times) for times in ready.values())
    last = [max(times[step] for times in ready.values()) for step in range(steps)]
    buckets = [
        {
            "bytes": sizes[name],
            "ready_ms": backward_end_ms
            - statistics.median(last[step] - times[step] for step in range(steps)) / 1e3,
        }
        for name, times in ready.items()
    ]
    return sorted(buckets, key=lambda bucket: bucket["ready_ms"])


def run_of(result, contender):
    """{"what", "ranks", "plain", "step_ms"}: times in ms."""
    by_name = {one["name"].rsplit("/", 1)[-1]: one for one in result["benchmarks"]}
    for name in ("plain", contender):
        if name not in by_name:
            raise ValueError(f"a run has no contender {name}, but {sorted(by_name)}")
    context = result["context"]
    return {
        "what": f"{context.get('network', 'a network')}, {context.get('batch', '?')} samples a rank, "
        f"{contender}",
        "ranks": int(context["ranks"]),
        "plain": by_name["plain"],
        "step_ms": by_name[contender]["real_time"],
    }


def trace_of(events, runs, cores):
    alone = next((run for run in runs if run["ranks"] == 1), None)
    if alone is None:
        raise ValueError("none of the runs has one rank")
    plain = alone["plain"]
    begin = plain["forward_ms"]
    end = begin + plain["backward_ms"]
    return {
        "what": alone["what"],
        "backward_begin_ms": begin,
        "backward_end_ms": end,
        "step_ms": plain["real_time"],
        "wrapper_ms": max(0.0, alone["step_ms"] - plain["real_time"]),
        "buckets": buckets_of(events, end),
        "contention": {
            str(run["ranks"]): run["plain"]["real_time"] / plain["real_time"]
            for run in runs
            if 1 < run["ranks"] <= cores
        },
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("timeline")
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--trace", required=True)
    parser.add_argument("--measured", required=True)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--memory-gb-s", type=float, required=True)
    parser.add_argument("--contender", default="hora_copies")
    arguments = parser.parse_args()
    with open(arguments.timeline, encoding="utf-8") as file:
        events = json.load(file)
    if isinstance(events, dict):
        events = events["traceEvents"]
    runs = []
    for path in arguments.runs:
        with open(path, encoding="utf-8") as file:
            runs.append(run_of(json.load(file), arguments.contender))
    measured = {
        "network": {
            "cores_per_node": arguments.cores,
            "link_gbit": 1,
            "latency_us": 0,
            "message_us": 0,
            "memory_gb_s": arguments.memory_gb_s,
            "pass_uses_cores": True,
        },
        "runs": [{"ranks": run["ranks"], "step_ms": run["step_ms"]} for run in runs],
    }
    for path, value in (
        (arguments.trace, trace_of(events, runs, arguments.cores)),
        (arguments.measured, measured),
    ):
        with open(path, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
