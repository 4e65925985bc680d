#!/usr/bin/env python3
"""Sorts ImageNet's validation images (ILSVRC 2012) into one folder for each class.

VAL is the folder that ILSVRC2012_img_val.tar was unpacked into: ILSVRC2012_val_00000001.JPEG to
00050000.JPEG. Each is moved to VAL/CLASS/, where CLASS is a WordNet number such as n01440764, as
the training images' folders are called. The classes come from one of

  --devkit DIR   the unpacked ILSVRC2012_devkit_t12.tar.gz: data/ILSVRC2012_validation_ground_truth.txt
                 and data/meta.mat, which is read by scipy (Debian: python3-scipy)
  --labels FILE  a file with the class of each image, one a line, or LOC_val_solution.csv, as Kaggle
                 has it; needs Python alone

All is checked before the first image is moved. Images that lie in their folder already stay there,
so that an interrupted run can be repeated, and fewer images than the published ones are taken.
Exit code: 0, or 1 with a reason.
"""
import argparse
import collections
import pathlib
import re
import sys

IMAGE = re.compile(r"ILSVRC2012_val_(\d{8})\.JPEG")
CLASS = re.compile(r"n\d{8}")


class Problem(Exception):
    pass


def lines_of(path):
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise Problem(f"{path} cannot be read: {error}") from error


def numbered_classes(path):
    """{ILSVRC2012_ID: WordNet number} of the classes without children."""
    try:
        import scipy.io
    except ImportError as error:
        raise Problem(f"{path} is read by scipy, which is missing ({error}). Install it (Debian: "
                      "python3-scipy), or give --labels instead of --devkit") from error
    try:
        synsets = scipy.io.loadmat(path, squeeze_me=True)["synsets"]
        rows = zip(synsets["ILSVRC2012_ID"], synsets["WNID"], synsets["num_children"])
        return {int(number): str(name) for number, name, children in rows if int(children) == 0}
    except Exception as error:  # scipy's own are of many kinds
        raise Problem(f"{path} is not the devkit's: {error}; expected a MATLAB file with the array "
                      "synsets") from error


def classes_by_devkit(devkit):
    """The class of each image, in order, and where each stands."""
    data = devkit / "data" if (devkit / "data").is_dir() else devkit
    classes = numbered_classes(data / "meta.mat")
    truth = data / "ILSVRC2012_validation_ground_truth.txt"
    for number, line in enumerate(lines_of(truth), 1):
        if not line.strip():
            continue
        if not line.strip().isdecimal() or int(line) not in classes:
            raise Problem(f"{truth}, line {number}: {line.strip()!r} is no class; expected one of "
                          f"the {len(classes)} numbers in meta.mat")
        yield number, classes[int(line)], f"{truth}, line {number}"


def classes_by_list(path):
    for number, line in enumerate(lines_of(path), 1):
        image, name = number, line.strip()
        if not name or name == "ImageId,PredictionString":
            continue
        if "," in name:
            stem, boxes = name.split(",", 1)
            match = IMAGE.fullmatch(stem + ".JPEG")
            if match is None:
                raise Problem(f"{path}, line {number}: {stem!r} is no validation image")
            image, name = int(match[1]), boxes.split(" ")[0]
        yield image, name, f"{path}, line {number}"


def read_classes(entries):
    classes = {}
    for image, name, where in entries:
        if not CLASS.fullmatch(name):
            raise Problem(f"{where}: {name!r} is no class; expected a WordNet number as n01440764")
        if image in classes:
            raise Problem(f"{where}: image {image} is listed a second time")
        classes[image] = name
    return classes


def plan_moves(folder, classes):
    """([(from, to)], images that lie in their folder already)."""
    moves, sorted_already = [], 0
    for path in sorted(folder.iterdir()):
        inside = sorted(path.iterdir()) if path.is_dir() and CLASS.fullmatch(path.name) else [path]
        for image in inside:
            match = IMAGE.fullmatch(image.name)
            if match is None:
                continue
            name = classes.get(int(match[1]))
            if name is None:
                raise Problem(f"{image} has no class: the list holds {len(classes)} images")
            target = folder / name / image.name
            if target == image:
                sorted_already += 1
            elif target.exists():
                raise Problem(f"{image} cannot be moved: {target} is there already; remove one")
            else:
                moves.append((image, target))
    twice = [n for n, count in collections.Counter(to for _, to in moves).items() if count > 1]
    if twice:
        raise Problem(f"{twice[0].name} lies in two places below {folder}; remove one")
    return moves, sorted_already


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--devkit", type=pathlib.Path, metavar="DIR")
    source.add_argument("--labels", type=pathlib.Path, metavar="FILE")
    parser.add_argument("val", type=pathlib.Path, metavar="VAL")
    arguments = parser.parse_args()
    folder = arguments.val
    try:
        if not folder.is_dir():
            raise Problem(f"{folder} is no folder; expected the one with the validation images")
        classes = read_classes(classes_by_devkit(arguments.devkit) if arguments.devkit
                               else classes_by_list(arguments.labels))
        moves, sorted_already = plan_moves(folder, classes)
        if not moves and not sorted_already:
            raise Problem(f"{folder} holds no ILSVRC2012_val_00000001.JPEG or the like; unpack "
                          "ILSVRC2012_img_val.tar there")
        for source_path, target in moves:
            target.parent.mkdir(exist_ok=True)
            source_path.rename(target)
    except (Problem, OSError) as error:
        print(f"sort_validation.py: {error}", file=sys.stderr)
        return 1
    found = len(moves) + sorted_already
    missing = f"; {len(classes) - found} of the list are not here" if found < len(classes) else ""
    print(f"{folder}: moved {len(moves)} images, {sorted_already} lay in their class already"
          f"{missing}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
