#!/usr/bin/env python3
"""Makes a folder of classes with JPEGs of ImageNet's usual size out of larger photographs.

Usage: make_images.py FOLDER_OF_PHOTOGRAPHS TARGET [COUNT]
Cuts COUNT (512) parts of 500x375 or 375x500 pixels, scaled by a random factor, into TARGET/a to
TARGET/h, quality 96, which ImageNet's files mostly have. Needs Pillow. Always makes the same files.
Debian's packages mate-backgrounds and plasma-workspace-wallpapers have photographs.
"""
import argparse
import pathlib
import random
import sys

from PIL import Image


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=pathlib.Path, metavar="FOLDER_OF_PHOTOGRAPHS")
    parser.add_argument("target", type=pathlib.Path, metavar="TARGET")
    parser.add_argument("count", type=int, nargs="?", default=512, metavar="COUNT")
    options = parser.parse_args()
    source, target = options.source, options.target
    draw = random.Random(1)
    paths = sorted(p for p in source.rglob("*.jpg") if p.is_file() and not p.is_symlink())
    photographs = []
    for path in paths:
        try:
            image = Image.open(path)
        except OSError as error:
            print(f"{path} is left out: {error}", file=sys.stderr)
            continue
        if min(image.size) >= 750:
            image.thumbnail((2000, 2000))
            photographs.append(image.convert("RGB"))
    if not photographs:
        sys.exit(f"{source} has no photographs (.jpg) of at least 750 pixels; found {len(paths)}")
    for number in range(options.count):
        image = photographs[number % len(photographs)]
        width, height = (500, 375) if draw.random() < 0.75 else (375, 500)
        scale = draw.uniform(1, min(image.width / width, image.height / height))
        left = draw.uniform(0, image.width - scale * width)
        top = draw.uniform(0, image.height - scale * height)
        box = (left, top, left + scale * width, top + scale * height)
        part = image.resize((width, height), Image.BICUBIC, box=box)
        folder = target / "abcdefgh"[number % 8]
        folder.mkdir(parents=True, exist_ok=True)
        part.save(folder / f"{number:05}.jpg", quality=96)


main()
