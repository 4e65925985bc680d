#!/usr/bin/env python3
"""Makes losses.json: what PyTorch and torchvision give in the trainings that C++ repeats.

Runs on Debian's python3-torch (1.13.1) and python3-torchvision (0.14.1), in two minutes:

    tests/examples/vision/train/reference/make_losses.py > losses.json

Weights of two dimensions and more are given by the formula of
examples/vision/models/reference/make_reference.py, biases are zero, and BatchNorm is as
torchvision makes it with zero_init_residual. Images are bytes of the same formula: a third of what
their class has in common, and two thirds noise. Their labels are 0 to 9 in turn.

`fifty_steps`: 50 steps of whole ResNets, by SGD with momentum and weight decay, the rate by
CosineAnnealingLR. Rates are so low that rounding does not grow: at .005 the loss of ResNet-50 on
another processor differs by 3e-3 after 50 steps.

`stl10`: 10 steps on files in STL-10's layout, read by torchvision's STL10 and brought to 224x224,
in the order `order`.
"""
import json
import pathlib
import sys
import tempfile

import numpy
import torch
from torch import nn
from torchvision import datasets, transforms

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[5] /
                       "examples/vision/models/reference"))
from make_reference import CLASSES, formula, make, uniform  # noqa: E402

NORMALISATION = transforms.Normalize((0.5,) * 3, (0.5,) * 3)
STL10_SIDE = 96


def begun(name):
    model = make(name, CLASSES, zero_init_residual=True)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.copy_(formula(key, parameter))
            elif key.endswith("bias"):
                parameter.zero_()
    return model


def formula_bytes(name, count):
    return (256 * uniform(name, count)).to(torch.int32)


def pixels(index, side):
    count = 3 * side * side
    common = formula_bytes(f"class {index % CLASSES}", count)
    return ((common + 2 * formula_bytes(f"image {index}", count)) // 3).to(torch.uint8).numpy()


def optimizer_of(model, decay_all, **options):
    if decay_all:
        return torch.optim.SGD(model.parameters(), **options)
    decayed = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    return torch.optim.SGD([{"params": decayed}, {"params": others, "weight_decay": 0}], **options)


def losses(model, optimizer, batches, scheduler=None):
    model.train()
    values = []
    for images, labels in batches:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        values.append(loss.item())
    return values


def fifty_steps(name, side, rate, decay_all):
    batch, steps = 8, 50
    images = torch.stack([transforms.functional.to_tensor(
        pixels(index, side).reshape(3, side, side).transpose(1, 2, 0))
        for index in range(batch * steps)])
    labels = torch.arange(batch * steps) % CLASSES
    model = begun(name)
    optimizer = optimizer_of(model, decay_all, lr=rate, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    batches = zip(NORMALISATION(images).split(batch), labels.split(batch))
    return {"side": side, "batch": batch, "rate": rate, "decay_all": decay_all,
            "losses": losses(model, optimizer, batches, scheduler)}


def write_stl10(folder, images):
    folder.mkdir()
    (folder / "train_X.bin").write_bytes(
        b"".join(pixels(index, STL10_SIDE).tobytes() for index in range(images)))
    (folder / "train_y.bin").write_bytes(bytes(index % CLASSES + 1 for index in range(images)))
    (folder / "class_names.txt").write_text("".join(f"class{i}\n" for i in range(CLASSES)))


class FewImages(datasets.STL10):
    def _check_integrity(self):
        return True


def stl10():
    images, batch, rate = 40, 4, 0.01
    order = numpy.random.RandomState(14).permutation(images).tolist()
    with tempfile.TemporaryDirectory() as folder:
        write_stl10(pathlib.Path(folder) / datasets.STL10.base_folder, images)
        data = FewImages(folder, transform=transforms.Compose(
            [transforms.Resize((224, 224)), transforms.ToTensor(), NORMALISATION]))
        loader = torch.utils.data.DataLoader(data, batch_size=batch, sampler=order)
        model = begun("resnet18")
        optimizer = optimizer_of(model, True, lr=rate, momentum=0.9, weight_decay=1e-4)
        values = losses(model, optimizer, loader)
    return {"images": images, "batch": batch, "rate": rate, "order": order, "losses": values}


def main():
    torch.set_num_threads(1)
    made = {
        "fifty_steps": {"resnet18": fifty_steps("resnet18", 64, 0.005, True),
                        "resnet50": fifty_steps("resnet50", 32, 0.0002, False)},
        "stl10": stl10(),
    }
    print(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
