#!/usr/bin/env python3
"""Writes narrow_resnet18.safetensors and narrow_resnet18.json, which weights_test.cpp reads.

Made once, with PyPI's safetensors (0.8.0), torch (1.13.1) and torchvision (0.14.1), in this folder:

    ./make_weights.py

The model is torchvision's ResNet-18 with a sixteenth of its channels, trained for some steps, so
that every parameter and buffer differs from what it begins with.
"""
import json
import pathlib
import sys

import torch
from safetensors.torch import save_file
from torch import nn
from torchvision.models.resnet import BasicBlock, ResNet

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[5] /
                       "examples/vision/models/reference"))
from make_reference import CLASSES, uniform  # noqa: E402

SIDE = 64
WIDTH = 4


class NarrowResNet(ResNet):
    def __init__(self, layers, num_classes):
        super().__init__(BasicBlock, layers, num_classes)
        self.conv1 = nn.Conv2d(3, WIDTH, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTH)
        self.fc = nn.Linear(8 * WIDTH, num_classes)

    def _make_layer(self, block, planes, *arguments, **options):
        if planes == 64:
            self.inplanes = WIDTH
        return super()._make_layer(block, planes * WIDTH // 64, *arguments, **options)


def main():
    torch.manual_seed(5)
    torch.set_num_threads(1)
    model = NarrowResNet([2, 2, 2, 2], CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(5):
        loss = nn.functional.cross_entropy(model(torch.randn(16, 3, SIDE, SIDE)),
                                           torch.randint(CLASSES, (16,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    save_file(model.state_dict(), "narrow_resnet18.safetensors")
    images = 2 * uniform("images", 4 * 3 * SIDE * SIDE) - 1
    with torch.no_grad():
        logits = model.eval()(images.to(torch.float32).reshape(4, 3, SIDE, SIDE))
    pathlib.Path("narrow_resnet18.json").write_text(
        json.dumps({"side": SIDE, "logits": logits.flatten().tolist()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
