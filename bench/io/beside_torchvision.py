#!/usr/bin/env python3
"""Runs bench/io beside torchvision on the same images and prints both with their ratio.

Usage: beside_torchvision.py IO_PROGRAM FOLDER [--workers N] [--batch N] [--rounds N] [--json FILE]
The two alternate; shown are medians over the rounds. images/core_s are images for each second of
processor time, of all threads and processes: on a busy machine the better measure. Without
torchvision (Debian's package python3-torchvision) only the program's numbers are printed.
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def cpu_seconds():
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


class Torchvision:
    def __init__(self, options):
        import torch
        from torchvision import datasets, transforms
        torch.set_num_threads(1)
        self.loader_class = torch.utils.data.DataLoader
        self.options = options
        last = [transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)]
        first = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
        self.plain = datasets.ImageFolder(options.folder)
        self.training = datasets.ImageFolder(
            options.folder, transforms.Compose(first + last))
        self.validation = datasets.ImageFolder(
            options.folder,
            transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224)] + last))

    @staticmethod
    def each(images):
        for index in range(len(images)):
            images[index]

    def load(self, workers):
        for _ in self.loader_class(self.training, batch_size=self.options.batch,
                                   num_workers=workers):
            pass

    def measure(self):
        passes = {
            "decode": lambda: self.each(self.plain),
            "training_transforms": lambda: self.each(self.training),
            "validation_transforms": lambda: self.each(self.validation),
        }
        for workers in range(1, self.options.workers + 1):
            passes[f"loader/workers:{workers}"] = lambda workers=workers: self.load(workers)
        results = {}
        for name, one_pass in passes.items():
            cpu, start = cpu_seconds(), time.monotonic()
            one_pass()
            seconds = time.monotonic() - start
            results[name] = {"images/s": len(self.plain) / seconds,
                             "images/core_s": len(self.plain) / (cpu_seconds() - cpu)}
        return results


def run_program(options):
    command = [options.program, options.folder, f"--workers={options.workers}",
               f"--batch={options.batch}", "--benchmark_format=json", "--benchmark_min_time=1"]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return {one["name"].removesuffix("/real_time"): one
            for one in json.loads(output)["benchmarks"]}


def medians(rounds):
    return {name: {what: statistics.median(one[name][what] for one in rounds)
                   for what in ("images/s", "images/core_s", "MB/s") if what in rounds[0][name]}
            for name in rounds[0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="build/release/bench/io/io")
    parser.add_argument("folder", help="folder of classes with images")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="file for the medians")
    options = parser.parse_args()
    try:
        peer = Torchvision(options)
    except ImportError as error:
        peer = None
        print(f"without torchvision: {error}", file=sys.stderr)
    own_rounds, peer_rounds = [], []
    for _ in range(options.rounds):
        own_rounds.append(run_program(options))
        if peer:
            peer_rounds.append(peer.measure())
    own, other = medians(own_rounds), medians(peer_rounds) if peer else {}
    print(f"{'':24}{'MB/s':>8}{'images/s':>10}{'torchvision':>13}{'ratio':>7}"
          f"{'images/core_s':>15}{'torchvision':>13}{'ratio':>7}")
    for name, values in own.items():
        line = f"{name:24}{values['MB/s']:8.1f}"
        for what, width in (("images/s", 10), ("images/core_s", 15)):
            line += f"{values[what]:{width}.0f}"
            if name in other:
                line += f"{other[name][what]:13.0f}{values[what] / other[name][what]:7.2f}"
            else:
                line += f"{'':20}"
        print(line.rstrip())
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump({"io": own, "torchvision": other}, out, indent=1)
            out.write("\n")


main()
