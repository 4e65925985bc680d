#!/usr/bin/env python3
"""Makes a small folder of photographs laid out as ImageNet is, to try a training without a download.

    make_photographs.py FOLDER

writes FOLDER/train/CLASS/*.JPEG and FOLDER/val/CLASS/*.JPEG: cuttings of five photographs that
Debian packages carry. A class is a part of one of them, such as dahlia or stairs; an image is
a piece of that part, turned, perhaps mirrored, changed in brightness, contrast and saturation, of
50 to 320 pixels a side, compressed in a quality of its own. Some are greyscale or progressive; each
half has one in CMYK and one PNG by the name of .JPEG, as ImageNet has them. Both halves are cut from
the same photographs, by other random numbers: what is reached on val says that a program learns, not
how well it would do elsewhere.

The same seed, numbers and versions of the packages give the same bytes. FOLDER appears when it is
complete. Needs Pillow, numpy, and the photographs of Debian's python3-sklearn, python3-scipy and
python3-matplotlib. Exit code: 0, or 1 with a reason.
"""
import argparse
import importlib.util
import pathlib
import random
import shutil
import sys
import tempfile
import warnings

# Class: photograph, and which part of it: left, top, right, bottom, in parts of its sides.
CLASSES = {
    "admiral": ("grace_hopper", (0.25, 0.02, 0.85, 0.65)),
    "dahlia": ("flower", (0.24, 0.17, 0.72, 0.87)),
    "dark-leaves": ("flower", (0.00, 0.00, 0.30, 0.90)),
    "fur": ("face", (0.00, 0.00, 0.40, 0.42)),
    "pagoda": ("china", (0.10, 0.05, 0.58, 0.80)),
    "palm": ("face", (0.00, 0.42, 0.50, 1.00)),
    "raccoon": ("face", (0.35, 0.00, 0.95, 0.70)),
    "sky": ("china", (0.50, 0.00, 1.00, 0.50)),
    "stairs": ("ascent", (0.00, 0.35, 1.00, 1.00)),
    "trees": ("china", (0.00, 0.65, 1.00, 1.00)),
}


class Problem(Exception):
    pass


def folder_of(module):
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise Problem(f"Python's {module} is missing; install it (Debian: python3-{module})")
    return pathlib.Path(spec.submodule_search_locations[0])


def photographs():
    """{name: RGB image}"""
    try:
        from PIL import Image
    except ImportError as error:
        raise Problem(f"Pillow is missing ({error}); install it (Debian: python3-pil)") from error
    found = {}
    pictures = folder_of("sklearn") / "datasets" / "images"
    for name in ("china", "flower"):
        found[name] = Image.open(pictures / f"{name}.jpg").convert("RGB")
    folder_of("matplotlib")
    from matplotlib import cbook
    found["grace_hopper"] = Image.open(
        cbook.get_sample_data("grace_hopper.jpg", asfileobj=False)).convert("RGB")
    folder_of("scipy")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy 1.12 no longer has them
        try:
            import scipy.misc
            for name in ("face", "ascent"):
                pixels = getattr(scipy.misc, name)().astype("uint8")
                found[name] = Image.fromarray(pixels).convert("RGB")
        except (ImportError, AttributeError) as error:
            raise Problem(f"this SciPy has no photographs ({error}); expected 1.11 or earlier, as "
                          "Debian 12's python3-scipy") from error
    return found


def cut(photograph, part, draw):
    """A turned piece of `part`, in its own pixels."""
    from PIL import Image
    width, height = photograph.size
    left, top, right, bottom = (round(share * side) for share, side
                                in zip(part, (width, height, width, height)))
    side = draw.uniform(0.45, 0.9) * min(right - left, bottom - top)
    aspect = draw.uniform(3 / 4, 4 / 3)
    half_width, half_height = side * min(1, aspect) / 2, side * min(1, 1 / aspect) / 2
    x = draw.uniform(left + half_width, right - half_width)
    y = draw.uniform(top + half_height, bottom - half_height)
    turned = photograph.rotate(draw.uniform(-12, 12), Image.Resampling.BILINEAR, center=(x, y))
    return turned.crop((round(x - half_width), round(y - half_height),
                        round(x + half_width), round(y + half_height)))


def change(piece, draw):
    """Mirrored or not, in other light, and of another size."""
    from PIL import Image, ImageEnhance, ImageOps
    if draw.random() < 0.5:
        piece = ImageOps.mirror(piece)
    for enhance in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        piece = enhance(piece).enhance(draw.uniform(0.75, 1.25))
    longer = draw.randint(80, 320)
    scale = longer / max(piece.size)
    return piece.resize(tuple(max(1, round(scale * side)) for side in piece.size),
                        Image.Resampling.BICUBIC)


def write(piece, path, number, draw):
    """Image 0 of the half is the one in CMYK, image 1 the PNG."""
    if number == 1:
        piece.save(path, format="PNG")
        return
    if number == 0:
        piece = piece.convert("CMYK")
    elif draw.random() < 0.05:
        piece = piece.convert("L")
    piece.save(path, format="JPEG", quality=draw.randint(70, 95), progressive=draw.random() < 0.1,
               subsampling=draw.choice((0, 1, 2)))


def make(folder, images, seed):
    """`images`: how many of each class, {"train": ..., "val": ...}."""
    sources = photographs()
    for half, count in images.items():
        number = 0
        for index in range(count):
            for name, (photograph, part) in CLASSES.items():
                draw = random.Random(f"{seed}/{half}/{name}/{index}")
                path = folder / half / name / f"{name}_{half}_{index:05d}.JPEG"
                path.parent.mkdir(parents=True, exist_ok=True)
                write(change(cut(sources[photograph], part, draw), draw), path, number, draw)
                number += 1


def count_of_images(text):
    number = int(text)
    if not 1 <= number <= 10000:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to 10000")
    return number


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--train", type=count_of_images, default=48, metavar="N",
                        help="images of each class for training [default: %(default)s]")
    parser.add_argument("--val", type=count_of_images, default=12, metavar="N",
                        help="images of each class for validation [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=1, metavar="N",
                        help="draws the pieces and how they are changed [default: %(default)s]")
    arguments = parser.parse_args()
    folder = arguments.folder
    work = None
    try:
        if folder.exists():
            raise Problem(f"{folder} exists already; remove it, or name another folder")
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = pathlib.Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
        work.chmod(0o755)
        make(work, {"train": arguments.train, "val": arguments.val}, arguments.seed)
        work.rename(folder)
    except (Problem, OSError) as error:
        print(f"make_photographs.py: {error}", file=sys.stderr)
        return 1
    finally:
        if work is not None:
            shutil.rmtree(work, ignore_errors=True)
    print(f"{folder}: {arguments.train} + {arguments.val} images of each of {len(CLASSES)} classes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
