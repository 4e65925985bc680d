"""Makes scalars.tfevents with the record writer and the messages of PyPI's tensorboard:

    python3 make_fixture.py scalars.tfevents

The scalars are those that event_writer_test.cpp expects."""
import sys

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

SCALARS = [
    ("loss/training", 1, 2.302585, 1700000000.25),
    ("loss/training", 10, 1.5, 1700000001.5),
    ("top1/validation", 10, 43.75, 1700000002.0),
    ("Prüfung ✓", 2**40, -1e-30, 1700000003.125),
]

with open(sys.argv[1], "wb") as file:
    writer = RecordWriter(file)
    writer.write(Event(wall_time=1700000000.0, file_version="brain.Event:2").SerializeToString())
    for tag, step, value, wall_time in SCALARS:
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        writer.write(Event(wall_time=wall_time, step=step, summary=summary).SerializeToString())
    writer.flush()
