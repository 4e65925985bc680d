#!/usr/bin/env python3
"""Makes resnet18_logits.json: torchvision's logits on weights that a formula gives.

Runs on Debian's python3-torchvision (0.14.1), nothing else:

    examples/cifar10/reference/make_reference.py > examples/cifar10/reference/resnet18_logits.json

The formula, which tests/examples/resnet18_test.cpp repeats: a tensor's name is hashed (FNV-1a, 64
bits), element i takes the high 24 bits of the generator started there, and its value lies in
low .. high, by the last part of the name. A step of the draw is Knuth's MMIX generator; all sums and
products in double precision are exact up to the one rounding to float32, so that every language
gets the same bits.
"""
import json
import math

import torch
import torchvision

MASK = (1 << 64) - 1


def fnv1a(text):
    state = 0xCBF29CE484222325
    for byte in text.encode():
        state = ((state ^ byte) * 0x100000001B3) & MASK
    return state


def uniform(name, count):
    """`count` values in [0, 1), multiples of 2^-24."""
    state = fnv1a(name)
    values = torch.empty(count, dtype=torch.float64)
    for i in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        values[i] = (state >> 40) / (1 << 24)
    return values


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


def cifar_stem(model):
    model.conv1 = torch.nn.Conv2d(3, 64, 3, stride=1, padding=1, bias=False)
    model.maxpool = torch.nn.Identity()
    return model


def logits(model):
    model.load_state_dict({name: formula(name, value) for name, value in model.state_dict().items()})
    images = (2 * uniform("images", 4 * 3 * 32 * 32) - 1).to(torch.float32).reshape(4, 3, 32, 32)
    model.eval()
    with torch.no_grad():
        evaluated = model(images)
    # In training mode BatchNorm takes the batch's own statistics.
    model.train()
    with torch.no_grad():
        trained = model(images)
    return {
        "parameters": [name for name, _ in model.named_parameters()],
        "buffers": [name for name, _ in model.named_buffers()],
        "values": sum(p.numel() for p in model.parameters()),
        "evaluation": evaluated.tolist(),
        "training": trained.tolist(),
    }


def main():
    torch.set_num_threads(1)
    resnet18 = torchvision.models.resnet18
    print(json.dumps({
        "torchvision": torchvision.__version__,
        "imagenet": logits(resnet18(num_classes=10)),
        "cifar": logits(cifar_stem(resnet18(num_classes=10))),
    }, indent=1))


if __name__ == "__main__":
    main()
