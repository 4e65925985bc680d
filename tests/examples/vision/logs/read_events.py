#!/usr/bin/env python3
"""Compares TensorBoard's event file of a training with its JSON log, by TensorBoard's own reader.

    read_events.py --check             # exit code 77 where a module is missing
    read_events.py FOLDER LOG.json     # exit code 1, with the first difference, where they differ

Needs PyPI's tensorboard. Both must have the same scalars at the same steps; those of the event file are
float32."""
import json
import sys

try:
    import numpy
    from tensorboard.backend.event_processing.event_accumulator import (SCALARS, EventAccumulator)
except ImportError as error:
    print(f"read_events.py: {error}")
    sys.exit(77)

# Tags by the fields of training_log.h.
OF_STEP = {
    "loss": "loss/training",
    "top1": "top1/training",
    "top5": "top5/training",
    "learning_rate": "learning_rate",
    "images_per_second": "images_per_second",
    "seconds": "step_seconds/all",
    "data_seconds": "step_seconds/data",
    "exposed_seconds": "step_seconds/exposed_communication",
    "gpu_bytes": "gpu_memory/peak_bytes",
}
OF_EPOCH = {"loss": "loss/epoch", "top1": "top1/validation", "top5": "top5/validation"}


def scalars_of_log(path):
    """{tag: [(step since the begin, value)]}"""
    scalars, steps_before = {}, 0
    with open(path, encoding="utf-8") as file:
        for entry in map(json.loads, file):
            at = steps_before + entry.get("step", entry.get("steps", 0))
            tags = {"step": OF_STEP, "epoch": OF_EPOCH}.get(entry["kind"], {})
            for field, tag in tags.items():
                if field in entry:
                    scalars.setdefault(tag, []).append((at, float(numpy.float32(entry[field]))))
            if entry["kind"] == "epoch":
                steps_before = at
    return scalars


def scalars_of_events(folder):
    reader = EventAccumulator(folder, size_guidance={SCALARS: 0})  # all of them
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)]
            for tag in reader.Tags()[SCALARS]}


def main():
    if sys.argv[1:] == ["--check"]:
        return 0
    events, log = scalars_of_events(sys.argv[1]), scalars_of_log(sys.argv[2])
    if sorted(events) != sorted(log):
        print(f"the event file has the tags {sorted(events)}; expected {sorted(log)}")
        return 1
    for tag, expected in log.items():
        if events[tag] != expected:
            print(f"{tag}: the event file has {events[tag]}; expected {expected}")
            return 1
    print(f"TensorBoard reads {len(log)} tags, {sum(map(len, log.values()))} scalars")
    return 0


if __name__ == "__main__":
    sys.exit(main())
