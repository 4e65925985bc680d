#!/usr/bin/env python3
"""Makes a folder of classes with JPEGs of ImageNet's usual size out of larger photographs.

Usage: make_images.py FOLDER_OF_PHOTOGRAPHS TARGET [COUNT]
Cuts COUNT (512) parts of 500x375 or 375x500 pixels, scaled by a random factor, into TARGET/a to
TARGET/h, quality 96, which ImageNet's files mostly have. Needs Pillow. Always makes the same files.
Debian's packages mate-backgrounds and plasma-workspace-wallpapers have photographs.
"""
import pathlib
import random
import sys

from PIL import Image


def main():
    source, target = map(pathlib.Path, sys.argv[1:3])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 512
    draw = random.Random(1)
    paths = sorted(p for p in source.rglob("*.jpg") if p.is_file() and not p.is_symlink())
    photographs = []
    for path in paths:
        image = Image.open(path)
        if min(image.size) >= 750:
            image.thumbnail((2000, 2000))
            photographs.append(image.convert("RGB"))
    if not photographs:
        sys.exit(f"{source} has no photographs (.jpg) of at least 750 pixels; found {len(paths)}")
    for number in range(count):
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
