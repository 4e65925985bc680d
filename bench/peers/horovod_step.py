"""Steps of ResNet-18 by Horovod beside plain ones, as bench/training_step does it: 32x32 images, batch
32, SGD with momentum, one thread a rank; blocks alternate. Under mpirun; rank 0 writes FILE as
Google Benchmark does. usage: horovod_step.py FILE"""

import json
import os
import resource
import statistics
import sys
import time

import horovod.torch as hvd
import torch
import torchvision

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "report"))
from results import median_interval  # noqa: E402

BATCH, BLOCKS, STEPS, WARM_UP = 32, 6, 4, 4


class Contender:
    def __init__(self, averages):
        torch.manual_seed(1 + hvd.rank())
        self.model = torchvision.models.resnet18(num_classes=10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        self.images = torch.randn(BATCH, 3, 32, 32)
        self.labels = torch.randint(10, (BATCH,))
        if averages:
            self.optimizer = hvd.DistributedOptimizer(
                self.optimizer, named_parameters=self.model.named_parameters())
            hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.seconds, self.parts, self.usage = [], [], [0, 0, 0]

    def step(self):
        begin = time.perf_counter()
        for parameter in self.model.parameters():
            parameter.grad = None
        loss = torch.nn.functional.cross_entropy(self.model(self.images), self.labels)
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        self.optimizer.step()
        end = time.perf_counter()
        return end - begin, forward - begin, backward - forward, end - backward

    def block(self):
        hvd.barrier()
        self.step()
        before = resource.getrusage(resource.RUSAGE_SELF)
        steps = [self.step() for _ in range(STEPS)]
        after = resource.getrusage(resource.RUSAGE_SELF)
        self.seconds.append([step[0] for step in steps])
        self.parts += steps
        for index, name in enumerate(("ru_minflt", "ru_nvcsw", "ru_nivcsw")):
            self.usage[index] += getattr(after, name) - getattr(before, name)

    def row(self, name):
        columns = [statistics.median(column) * 1e3 for column in zip(*self.parts)]
        usage = [count / len(self.parts) for count in self.usage]
        return {"name": f"training_step/{name}", "run_type": "iteration", "time_unit": "ms",
                "real_time": columns[0], "forward_ms": columns[1], "backward_ms": columns[2],
                "update_ms": columns[3], "p99_ms": max(step[0] for step in self.parts) * 1e3,
                "page_faults": usage[0], "switches": usage[1], "switches_by_force": usage[2]}


def main(path):
    hvd.init()
    torch.set_num_threads(1)
    plain, averaged = Contender(False), Contender(True)
    for _ in range(WARM_UP):
        plain.step()
        averaged.step()
    for _ in range(BLOCKS):
        plain.block()
        averaged.block()
    ratios = [statistics.median(ours) / statistics.median(base)
              for ours, base in zip(averaged.seconds, plain.seconds)]
    low, median, high = median_interval(ratios)
    row = averaged.row("horovod")
    # The slowest rank's, as for the others.
    for key, value in (("over_plain", median), ("over_plain_low", low), ("over_plain_high", high)):
        row[key] = hvd.allreduce(torch.tensor(value), op=hvd.Max, name=key).item() \
            if hasattr(hvd, "Max") else value
    weights = torch.cat([value.detach().flatten() for value in averaged.model.parameters()])
    row["wrong"] = 0.0 if torch.equal(hvd.broadcast(weights, root_rank=0), weights) else 1.0
    if hvd.rank() == 0:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"context": {"ranks": str(hvd.size()), "nodes": "1", "network": "resnet18",
                                   "horovod": "0.28.1"},
                       "benchmarks": [plain.row("plain"), row]}, file, indent=1)


if __name__ == "__main__":
    main(sys.argv[1])
