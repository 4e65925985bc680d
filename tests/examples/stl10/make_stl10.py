#!/usr/bin/env python3
"""Writes photographs in STL-10's binary layout, to try a training on STL-10.

    make_stl10.py PHOTOGRAPHS FOLDER

PHOTOGRAPHS is what examples/imagenet/make_photographs.py has made: ten classes, of which train becomes
FOLDER/train_X.bin with train_y.bin, and val test_X.bin with test_y.bin, each image scaled to 96x96.
The classes take turns, so that the first images are of all of them."""
import pathlib
import sys

import numpy
from PIL import Image


def main():
    photographs, folder = map(pathlib.Path, sys.argv[1:])
    classes = sorted(path.name for path in (photographs / "train").iterdir())
    folder.mkdir()
    (folder / "class_names.txt").write_text("".join(name + "\n" for name in classes))
    for half, part in (("train", "train"), ("val", "test")):
        files = [sorted((photographs / half / name).iterdir()) for name in classes]
        images, labels = bytearray(), bytearray()
        for turn in zip(*files):
            for label, path in enumerate(turn, start=1):
                image = Image.open(path).convert("RGB").resize((96, 96), Image.Resampling.BICUBIC)
                # Red, green and blue plane, each column by column.
                images += numpy.asarray(image).transpose(2, 1, 0).tobytes()
                labels.append(label)
        (folder / f"{part}_X.bin").write_bytes(images)
        (folder / f"{part}_y.bin").write_bytes(labels)


if __name__ == "__main__":
    main()
