#!/usr/bin/env python3
"""Makes photograph.jpg, tiles.png and cases.json: what torchvision's transforms give.

Usage: make_reference.py IMAGE FOLDER
With Debian 12's python3-torchvision 0.14.1 and Pillow 9.4; IMAGE is astronaut.png of Debian's
package python3-skimage (NASA, public domain), which need not be installed for the tests.
tiles.png has one tile of 64x64 pixels for each of cases.json, one below the other.
"""
import json
import sys

from PIL import Image
from torchvision.transforms import functional as F
from torchvision.transforms import CenterCrop, Resize

SIDE = 64


def main():
    source, folder = sys.argv[1:]
    photograph = Image.open(source).convert("RGB").crop((20, 0, 500, 360))
    photograph.save(f"{folder}/photograph.jpg", quality=90)
    image = Image.open(f"{folder}/photograph.jpg").convert("RGB")
    small = F.crop(image, 40, 100, SIDE, SIDE)
    cases, tiles = [], []

    def add(tile, **case):
        assert tile.size == (SIDE, SIDE) and tile.mode == "RGB"
        cases.append(case)
        tiles.append(tile)

    for top, left, height, width in [
        (0, 0, 360, 480), (40, 100, 64, 64), (10, 80, 301, 257), (100, 200, 33, 47),
        (59, 131, 150, 200), (359, 470, 1, 10), (0, 460, 360, 20), (3, 2, 129, 128),
    ]:
        tile = F.resized_crop(image, top, left, height, width, [SIDE, SIDE])
        add(tile, kind="resized_crop", crop=[left, top, width, height])
    add(F.hflip(tile), kind="resized_crop", crop=[2, 3, 128, 129], flip=True)
    for shorter in (73, 64, 80):
        add(CenterCrop(SIDE)(Resize(shorter)(image)), kind="centre_crop", shorter_side=shorter)
    add(CenterCrop(SIDE)(Resize(41)(image)), kind="centre_crop", shorter_side=41)
    add(Resize([SIDE, SIDE])(image), kind="resize")
    for top, left in [(0, 0), (8, 8), (3, 7), (4, 4)]:
        tile = F.crop(F.pad(small, 4), top, left, SIDE, SIDE)
        add(tile, kind="padded_crop", of=[100, 40, SIDE, SIDE], place=[left - 4, top - 4])

    sheet = Image.new("RGB", (SIDE, SIDE * len(tiles)))
    for number, tile in enumerate(tiles):
        sheet.paste(tile, (0, SIDE * number))
    sheet.save(f"{folder}/tiles.png", optimize=True)
    with open(f"{folder}/cases.json", "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")


main()
