#!/usr/bin/env python3
"""Loads weights of hora::Checkpoint into torchvision's model, and writes weights for C++.

    exchange_weights.py --check             # exit code 77 where a module is missing
    exchange_weights.py resnet18 FOLDER     # called by weights_test.cpp

Needs torchvision and PyPI's safetensors. FOLDER/last/weights.safetensors is loaded strictly; the
logits must be those of FOLDER/logits.safetensors. Then a model drawn anew, trained for a step, is
written to FOLDER/of_torchvision.safetensors, and its logits beside it.
"""
import pathlib
import sys

try:
    import torch
    import torchvision
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"exchange_weights.py: {error}")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[5] /
                       "examples/vision/models/reference"))
from make_reference import CLASSES, uniform  # noqa: E402

SIDE = 64


def images():
    values = 2 * uniform("images", 4 * 3 * SIDE * SIDE) - 1
    return values.to(torch.float32).reshape(4, 3, SIDE, SIDE)


def logits(model):
    with torch.no_grad():
        return model.eval()(images())


def load(name, folder):
    model = getattr(torchvision.models, name)(num_classes=CLASSES)
    model.load_state_dict(load_file(folder / "last" / "weights.safetensors"), strict=True)
    expected = load_file(folder / "logits.safetensors")["logits"]
    difference = (logits(model) - expected).abs().max().item()
    largest = expected.abs().max().item()
    print(f"{name}: torchvision's largest difference of a logit {difference:g}, "
          f"largest logit {largest:g}", flush=True)
    return difference <= 1e-5 * largest


def write(name, folder):
    torch.manual_seed(1)
    model = getattr(torchvision.models, name)(num_classes=CLASSES).train()
    model(2 * images())  # running statistics that are not the first ones
    save_file(model.state_dict(), folder / "of_torchvision.safetensors")
    save_file({"logits": logits(model)}, folder / "logits_of_torchvision.safetensors")


def main():
    if sys.argv[1:] == ["--check"]:
        return 0
    torch.set_num_threads(1)
    name, folder = sys.argv[1], pathlib.Path(sys.argv[2])
    if not load(name, folder):
        print("exchange_weights.py: these are other logits")
        return 1
    write(name, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
