#!/usr/bin/env python3
"""Converts CIFAR-10's Python version into its binary version, which the trainers read.

usage: from_python.py cifar-10-python.tar.gz|FOLDER OUTPUT      (needs python3-numpy)
"""
import pathlib
import pickle
import sys
import tarfile

import numpy

ALLOWED = {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"),
           ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")}


class ArraysOnly(pickle.Unpickler):
    def find_class(self, module, name):
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of CIFAR-10")
        return super().find_class(module, name)


def files(source):
    """(name, open file) of each batch."""
    if source.is_dir():
        for path in sorted(source.glob("**/*_batch*")):
            yield path.name, path.open("rb")
        return
    with tarfile.open(source) as archive:
        for entry in archive:
            name = pathlib.PurePath(entry.name).name
            if "_batch" in name and entry.isfile():
                yield name, archive.extractfile(entry)


def main(source, output):
    output.mkdir(parents=True, exist_ok=True)
    count = 0
    for name, file in files(source):
        batch = ArraysOnly(file, encoding="latin1").load()
        labels = numpy.array(batch["labels"], dtype="uint8").reshape(-1, 1)
        pixels = batch["data"].astype("uint8", casting="no").reshape(len(labels), 3072)
        (output / f"{name}.bin").write_bytes(numpy.hstack([labels, pixels]).tobytes())
        count += 1
    if count == 0:
        sys.exit(f"from_python.py: {source} holds no batch of CIFAR-10; expected data_batch_1 and others")
    print(f"{count} files in {output}")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
