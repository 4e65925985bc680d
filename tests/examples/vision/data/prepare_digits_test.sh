#!/usr/bin/env bash
# prepare_digits writes the same bytes every time, whole folders alone, and names what is wrong.
# Usage: prepare_digits_test.sh PREPARE_DIGITS
set -euo pipefail
prepare_digits=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/prepare_digits_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

# expect_refused TEXT: of what it reads.
expect_refused() {
  if "$prepare_digits" --output refused > output 2>&1; then echo "FAILED: not refused: $1"; exit 1; fi
  grep -qF -- "$1" output || { echo "FAILED: no '$1' in:"; cat output; exit 1; }
  [[ ! -e refused ]] || { echo "FAILED: $1: a folder was written"; exit 1; }
}

awk 'BEGIN {
  for (image = 0; image < 1797; ++image) {
    for (pixel = 0; pixel < 64; ++pixel) {
      printf "%d,", (image * (pixel + 3) + int(image / 17) * pixel) % 17
    }
    print image % 10
  }
}' > digits.csv

"$prepare_digits" --output new/digits < digits.csv
(cd new/digits && sha256sum -c) << 'SUMS'
7427877c40fb0361401248f9c96abe6117396bc6ab16811b5b1706274c02443e  batches.meta.txt
b861c865793d6a009fa5a0ee440957e1788505b5e36eee227e6c3e4f7edf5707  data_batch_1.bin
4761c8c93d0aadf0590352cac5502f6931ae4e0c64a9ed514f3662214981ff30  test_batch.bin
SUMS
[[ $(ls new) == digits ]] || { echo "FAILED: a draft was left: $(ls new)"; exit 1; }
if "$prepare_digits" --output new/digits < digits.csv 2> output; then echo "FAILED: written over"; exit 1; fi
grep -q 'new/digits exists already' output

pixels=$(printf '1,%.0s' {1..64})
head -n 1796 digits.csv | expect_refused 'Found 1796 digits; expected 1797'
printf '%s\n' "${pixels}1" "17,${pixels#*,}1" | expect_refused "line 2: field 1 is '17'"
echo "${pixels}10" | expect_refused "line 1: field 65 is '10'"
echo "-1,${pixels#*,}1" | expect_refused "field 1 is '-1'"
echo "1,2,3" | expect_refused "field 3 is '3'"
echo "${pixels}1,1" | expect_refused "field 65 is '1'"
echo "1,,2" | expect_refused "field 2 is ''"
echo | expect_refused "field 1 is ''"
echo "4 4" | expect_refused "'4 4'"
echo "all as expected"
