#!/usr/bin/env python3
"""Makes torchvision.json: torchvision's names, shapes, initial weights and logits.

Runs on Debian's python3-torchvision (0.14.1), nothing else:

    cd examples/vision/models/reference
    ./make_reference.py > torchvision.json
    ./make_reference.py --tensors resnet50      # one model's names and shapes, as the digest has them

`state` has every architecture: the numbers of tensors (parameters, then buffers) and values, and the
FNV-1a hash (64 bits) of their lines "name shape", such as "conv1.weight 64x3x7x7".

`drawn` has what manual_seed(7) draws: the middle value of each parameter, with ten classes.

`logits` are of weights that a formula gives, which tests/examples/vision/models/formula.h repeats:
a tensor's name is hashed (FNV-1a), element i takes the high 24 bits of the generator that starts
there (Knuth's MMIX, one step an element), and its value lies in low .. high, by the name's last
part. All sums and products in double precision are exact up to the one rounding to float32, so that
every language gets the same bits. The images are made in the same way.

torchvision has no ResNet for CIFAR: here it is made of torchvision's blocks.
"""
import json
import math
import sys

import numpy
import torch
import torchvision
from torch import nn
from torchvision import models
from torchvision.models.resnet import BasicBlock

MASK = (1 << 64) - 1
FACTOR = 6364136223846793005
SUMMAND = 1442695040888963407
CLASSES = 10


def fnv1a(text):
    state = 0xCBF29CE484222325
    for byte in text.encode():
        state = ((state ^ byte) * 0x100000001B3) & MASK
    return state


def uniform(name, count):
    """`count` values in [0, 1), multiples of 2^-24."""
    # State i is FACTOR^i start + SUMMAND (1 + FACTOR + ... + FACTOR^(i-1)), modulo 2^64.
    powers = numpy.full(count, FACTOR, dtype=numpy.uint64).cumprod(dtype=numpy.uint64)
    sums = numpy.concatenate((numpy.ones(1, numpy.uint64), powers[:-1])).cumsum(dtype=numpy.uint64)
    states = powers * numpy.uint64(fnv1a(name)) + sums * numpy.uint64(SUMMAND)
    return torch.from_numpy((states >> numpy.uint64(40)).astype(numpy.float64) / (1 << 24))


def formula(name, tensor):
    """Weights of about the size that training starts from; every buffer differs from its default."""
    low, high = 0.5, 1.5
    if name.endswith("num_batches_tracked"):
        return torch.ones_like(tensor)
    if name.endswith("bias") or name.endswith("running_mean"):
        low, high = -0.25, 0.25
    elif tensor.dim() > 1:
        fan_in = tensor[0].numel()
        high = 2.0 ** -round(0.5 * math.log2(fan_in / 6))
        low = -high
    values = low + (high - low) * uniform(name, tensor.numel())
    return values.to(torch.float32).reshape(tensor.shape)


class Padding(nn.Module):
    """Option A of He et al. 2015, section 3.3: every second place, zeros in the new channels."""

    def forward(self, x):
        return torch.cat([x[:, :, ::2, ::2], torch.zeros_like(x[:, :, ::2, ::2])], dim=1)


class CifarResNet(nn.Module):
    """He et al. 2015, section 4.2: 6n + 2 layers."""

    def __init__(self, n, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*[BasicBlock(16, 16) for _ in range(n)])
        self.layer2 = self.stage(16, 32, n)
        self.layer3 = self.stage(32, 64, n)
        self.fc = nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @staticmethod
    def stage(channels, width, n):
        return nn.Sequential(BasicBlock(channels, width, 2, Padding()),
                             *[BasicBlock(width, width) for _ in range(n - 1)])

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def make(name, num_classes, **options):
    depths = {"resnet20": 3, "resnet32": 5, "resnet44": 7, "resnet56": 9, "resnet110": 18}
    if name in depths:
        return CifarResNet(depths[name], num_classes)
    stem = options.pop("stem", "imagenet")
    model = getattr(models, name)(num_classes=num_classes, **options)
    if stem == "cifar":
        model.conv1 = nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
        model.maxpool = nn.Identity()
    return model


NAMES = ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnet20", "resnet32",
         "resnet44", "resnet56", "resnet110", "alexnet", "vgg11", "vgg11_bn", "vgg16", "vgg16_bn"]


def lines(model):
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return [f"{name} {'x'.join(map(str, tensor.shape))}" for name, tensor in tensors]


def state(name):
    model = make(name, 1000)
    return {
        "parameters": len(list(model.parameters())),
        "buffers": len(list(model.buffers())),
        "values": sum(parameter.numel() for parameter in model.parameters()),
        "digest": f"{fnv1a(chr(10).join(lines(model))):016x}",
    }


def drawn(name):
    torch.manual_seed(7)
    model = make(name, CLASSES)
    return [tensor.flatten()[tensor.numel() // 2].item() for tensor in model.parameters()]


def logits(name, side, **options):
    model = make(name, CLASSES, **options)
    model.load_state_dict({key: formula(key, value) for key, value in model.state_dict().items()})
    images = (2 * uniform("images", 4 * 3 * side * side) - 1).to(torch.float32)
    images = images.reshape(4, 3, side, side)
    with torch.no_grad():
        # In training mode BatchNorm takes the batch's own statistics.
        return {"side": side, **options, "evaluation": model.eval()(images).tolist(),
                "training": model.train()(images).tolist()}


def main():
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["--tensors"]:
        print("\n".join(lines(make(sys.argv[2], 1000))))
        return
    print(json.dumps({
        "torchvision": torchvision.__version__,
        "state": {name: state(name) for name in NAMES},
        "drawn": {name: drawn(name) for name in
                  ["resnet18", "resnet50", "resnet20", "alexnet", "vgg11_bn"]},
        "logits": {
            "resnet18": logits("resnet18", 64),
            "resnet18_cifar_stem": logits("resnet18", 32, stem="cifar"),
            "resnet50": logits("resnet50", 64),
            "resnet20": logits("resnet20", 32),
            "alexnet": logits("alexnet", 96, dropout=0.0),
            "vgg11_bn": logits("vgg11_bn", 64, dropout=0.0),
        },
    }, indent=1))


if __name__ == "__main__":
    main()
