#!/usr/bin/env bash
# sort_validation.py on a devkit of three classes and on lists: where images go, that a second run
# and a rest of images are fine, and that nothing moves when something is wrong.
# Usage: sort_validation_test.sh SORT_VALIDATION
set -euo pipefail
program=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/sort_validation_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
  cat output
  find val | sort
  echo "FAILED: $*"
  exit 1
}

for python in python3 /usr/bin/python3; do
  ! "$python" -c 'import scipy.io' 2> /dev/null || break
done
: > output
"$python" -c 'import scipy.io' || fail "install python3-scipy (cmake/debian-packages.txt, test)"

# The classes in another order than their names', and a class with children.
mkdir -p "devkit t12/data" val
"$python" - <<'END'
import numpy
import scipy.io
synsets = numpy.zeros((4, 1), dtype=[("ILSVRC2012_ID", object), ("WNID", object), ("words", object),
                                     ("gloss", object), ("num_children", object)])
for row, (number, name, children) in enumerate(
        [(1, "n02119789", 0), (2, "n02100735", 0), (3, "n01440764", 0), (1001, "n00001740", 7)]):
    synsets[row, 0] = (float(number), name, "words", "gloss", float(children))
scipy.io.savemat("devkit t12/data/meta.mat", {"synsets": synsets}, do_compression=True)
END
truth="devkit t12/data/ILSVRC2012_validation_ground_truth.txt"
printf '3\n1\n2\n1\n' > "$truth"
fill() {
  rm -rf val
  mkdir val
  for number in "$@"; do
    echo "$number" > "val/ILSVRC2012_val_0000000$number.JPEG"
  done
}
sort_validation() {
  "$python" "$program" "$@" val > output 2>&1
}
expect_files() {
  diff <(cd val && find . -type f | sort) <(printf './%s\n' "$@") || fail "other files"
  while read -r file; do
    grep -qx "${file: -6:1}" "$file" || fail "$file holds another image"
  done < <(find val -name '*.JPEG')
}
expect_refused() {
  local what=$1
  shift
  local before after
  before=$(find val | sort)
  ! sort_validation "$@" || fail "accepted: $what"
  grep -qF -- "$what" output || fail "does not say '$what'"
  after=$(find val | sort)
  [[ $after == "$before" ]] || fail "moved something, though $what"
}
all=(n01440764/ILSVRC2012_val_00000001.JPEG n02100735/ILSVRC2012_val_00000003.JPEG
  n02119789/ILSVRC2012_val_00000002.JPEG n02119789/ILSVRC2012_val_00000004.JPEG)

echo "=== by the devkit, in two runs"
fill 1 2 4
echo notes > val/README
sort_validation --devkit "devkit t12" || fail "refused"
grep -qx "val: moved 3 images, 0 lay in their class already; 1 of the list are not here" output ||
  fail "the summary"
echo 3 > val/ILSVRC2012_val_00000003.JPEG
sort_validation --devkit "devkit t12" || fail "refused"
grep -qx "val: moved 1 images, 3 lay in their class already" output || fail "the second summary"
rm val/README
expect_files "${all[@]}"

echo "=== by lists, without scipy"
printf 'n01440764\nn02119789\nn02100735\nn02119789\n' > list.txt
{
  echo "ImageId,PredictionString"
  echo "ILSVRC2012_val_00000004,n02119789 1 2 3 4 n02119789 5 6 7 8 "
  echo "ILSVRC2012_val_00000001,n01440764 1 2 3 4 "
  echo "ILSVRC2012_val_00000003,n02100735 1 2 3 4 "
  echo "ILSVRC2012_val_00000002,n02119789 1 2 3 4 "
} > list.csv
for list in list.txt list.csv; do
  fill 1 2 3 4
  mkdir -p no_scipy/scipy
  echo 'raise ImportError("none")' > no_scipy/scipy/__init__.py
  PYTHONPATH=no_scipy sort_validation --labels "$list" || fail "refused $list"
  expect_files "${all[@]}"
done
# As a class, an image's wrong folder is put right.
mv val/n01440764/ILSVRC2012_val_00000001.JPEG val/n02119789/
sort_validation --labels list.txt || fail "refused"
[[ -f val/n01440764/ILSVRC2012_val_00000001.JPEG ]] || fail "left an image in another's class"

echo "=== what is wrong is named, and nothing moves"
fill 1 2
PYTHONPATH=no_scipy expect_refused "Install it (Debian: python3-scipy), or give --labels" \
  --devkit "devkit t12"
fill 1 2 5
expect_refused "val/ILSVRC2012_val_00000005.JPEG has no class: the list holds 4 images" \
  --devkit "devkit t12"
fill 1 2
printf '3\n1001\n' > "$truth"
expect_refused "line 2: '1001' is no class; expected one of the 3 numbers" --devkit "devkit t12"
rm "$truth"
expect_refused "ILSVRC2012_validation_ground_truth.txt cannot be read" --devkit "devkit t12"
echo broken > "devkit t12/data/meta.mat"
expect_refused "meta.mat is not the devkit's" --devkit "devkit t12"
echo "../../outside" > bad.txt
expect_refused "bad.txt, line 1: '../../outside' is no class" --labels bad.txt
printf 'ILSVRC2012_val_00000001,n01440764 1\nILSVRC2012_val_00000001,n02119789 1\n' > twice.csv
expect_refused "twice.csv, line 2: image 1 is listed a second time" --labels twice.csv
mkdir val/n01440764
echo 1 > val/n01440764/ILSVRC2012_val_00000001.JPEG
expect_refused "is there already; remove one" --labels list.txt
mkdir val/n02100735
mv val/n01440764/ILSVRC2012_val_00000001.JPEG val/n02100735/
expect_refused "lies in two places below val" --labels list.txt
fill
expect_refused "val holds no ILSVRC2012_val_00000001.JPEG" --labels list.txt
expect_refused "absent.txt cannot be read" --labels absent.txt
echo "all as expected"
