#!/usr/bin/env bash
# make_photographs.py: the same seed gives the same files, every one of which the trainers' decoder
# takes, and bad arguments leave nothing behind.
# Usage: make_photographs_test.sh MAKE_PHOTOGRAPHS DECODE_ALL
set -euo pipefail
program=$1 decode_all=$2
work=$(mktemp -d "${TMPDIR:-/tmp}/make_photographs_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
  echo "FAILED: $*"
  exit 1
}

for python in python3 /usr/bin/python3; do
  ! "$python" -c 'import PIL, matplotlib, scipy, sklearn' 2> /dev/null || break
done
"$python" -c 'import PIL, matplotlib, scipy, sklearn' ||
  fail "install what is missing (cmake/debian-packages.txt, test)"
make() { "$python" "$program" --train 4 --val 2 "$@" > output 2>&1; }

echo "=== one seed, the same bytes; another, others"
make first || fail "$(cat output)"
make --seed 1 second || fail "$(cat output)"
make --seed 2 third || fail "$(cat output)"
diff -r first second || fail "the second run's files are others"
! cmp -s first/val/fur/fur_val_00001.JPEG third/val/fur/fur_val_00001.JPEG || fail "--seed"
[[ $(find third -name '*.JPEG' | wc -l) == 60 ]] || fail "files of the third"

echo "=== all are decoded: JPEG with 1, 3 and 4 components, progressive, PNG"
"$decode_all" first > decoded || fail "not all are decoded"
cat decoded
grep -qx 'image-folder' decoded || fail "the kind of data"
for line in 'training: 40 images of 10 classes, sides of [5-9][0-9] to [23][0-9][0-9]' \
  'validation: 20 images of 10 classes, sides of [5-9][0-9] to [23][0-9][0-9]'; do
  grep -qxE "$line" decoded || fail "no line '$line'"
done
"$python" - first/train <<'END'
import collections
import pathlib
import sys
from PIL import Image
kinds = collections.Counter()
for path in pathlib.Path(sys.argv[1]).glob("*/*.JPEG"):
    image = Image.open(path)
    kinds[image.format, image.mode] += 1
    kinds["progressive"] += "progression" in image.info
print(dict(kinds))
assert kinds["JPEG", "CMYK"] == 1 and kinds["PNG", "RGB"] == 1, kinds
assert kinds["JPEG", "L"] > 0 and kinds["JPEG", "RGB"] > 30 and kinds["progressive"] > 0, kinds
END

echo "=== what is refused"
before=$(ls)
! make first || fail "an existing folder is written to"
grep -q 'first exists already; remove it' output || fail "no reason: $(cat output)"
! make --train 0 fourth || fail "no images"
! make --seed x fourth || fail "a seed that is no number"
! make output/folder || fail "a folder below a file"
grep -q '^make_photographs.py: .*output' output || fail "no reason: $(cat output)"
[[ $(ls) == "$before" ]] || fail "left behind: $(ls)"
echo "all as expected"
