#!/usr/bin/env bash
# from_python.py converts the small archive, packed or not, and runs nothing that a pickle asks for.
# Usage: from_python_test.sh SOURCES
set -euo pipefail
converter=$1/examples/cifar10/from_python.py
archive=$1/tests/examples/vision/data/fixtures/cifar-10-python.tar.gz
work=$(mktemp -d "${TMPDIR:-/tmp}/from_python_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

/usr/bin/python3 "$converter" "$archive" packed
tar -xf "$archive"
/usr/bin/python3 "$converter" cifar-10-batches-py unpacked
diff -r packed unpacked

# Pixel i of record r of file f is (50 f + 20 r + i // 64) mod 256, its label (f + r) mod 10.
/usr/bin/python3 - << 'CHECK'
import pathlib
names = [f"data_batch_{f}" for f in range(1, 6)] + ["test_batch"]
assert sorted(p.name for p in pathlib.Path("packed").iterdir()) == [f"{n}.bin" for n in names]
for f, name in enumerate(names, 1):
    expected = b"".join(bytes([(f + r) % 10] + [(50 * f + 20 * r + i // 64) % 256 for i in range(3072)])
                        for r in range(2))
    assert pathlib.Path(f"packed/{name}.bin").read_bytes() == expected, name
pathlib.Path("harmful").mkdir()
pathlib.Path("harmful/data_batch_1").write_bytes(b"cos\nsystem\n(S'touch harmed'\ntR.")
CHECK

for source in harmful "$work/absent" packed/data_batch_1.bin; do
  if /usr/bin/python3 "$converter" "$source" refused 2> error; then
    echo "$source was taken"
    exit 1
  fi
done
[[ ! -e harmed ]]
