#!/usr/bin/env bash
# stl10 on made images in STL-10's layout, alone and on 2 ranks, each a node: lines as often as
# --print-freq says, the learning rate, an earlier log that goes on, and other data refused.
# Usage: run_test.sh STL10 MPIRUN... (the program; mpirun with its options)
set -euo pipefail
stl10=$1
shift
mpirun=("$@")

work=$(mktemp -d "${TMPDIR:-/tmp}/stl10_run_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
  echo "FAILED: $*"
  exit 1
}

# expect_lines COUNT PATTERN FILE
expect_lines() {
  local found
  found=$(grep -cE -- "$2" "$3" || true)
  [[ $found == "$1" ]] || { cat "$3"; fail "$found lines match '$2', expected $1"; }
}

# One colour a class, with noise.
mkdir -p data/stl10_binary
python3 - data/stl10_binary << 'END'
import random
import sys

random.seed(1)
for part, images in (("train", 204), ("test", 6)):
    with (open(f"{sys.argv[1]}/{part}_X.bin", "wb") as pixels,
          open(f"{sys.argv[1]}/{part}_y.bin", "wb") as labels):
        for image in range(images):
            label = image % 10
            labels.write(bytes([label + 1]))
            for plane in range(3):
                colour = 25 * label if plane == label % 3 else 0
                noise = bytes(random.randrange(colour, colour + 30) for _ in range(96))
                pixels.write(noise * 96)
with open(f"{sys.argv[1]}/class_names.txt", "w", encoding="ascii") as names:
    names.write("airplane\nbird\ncar\ncat\ndeer\ndog\nhorse\nmonkey\nship\ntruck\n")
END

small=(--data data -a resnet20 --stem imagenet -b 2 -j 1 --lr 0.01)

echo "=== alone, a line every 100 batches"
"$stl10" "${small[@]}" --epochs 1 -p 100 < /dev/null > output
cat output
expect_lines 1 'data: a subset of STL-10, 204 training and 6 validation images from data' output
expect_lines 2 '^Epoch: \[1\]\[ *[0-9]+/102\] +Time .* Data .* Loss .* Acc@1 .* images/s' output
expect_lines 1 '^Epoch: \[1\]\[100/102\]' output

echo "=== 2 ranks, a line every 10 batches, which is the default"
"${mpirun[@]}" "$stl10" "${small[@]}" --limit 44 --epochs 1 --lr-step-epochs 1 --model-dir models \
  --log-json log.json --log-every 1 < /dev/null > output
cat output
expect_lines 2 '^Epoch: \[1\]\[ *[0-9]+/11\]' output
expect_lines 1 '^Epoch: \[1\]\[10/11\]' output
expect_lines 1 '^epoch 1/1: loss [0-9.]+, validation [0-9.]+ % \([0-6] of 6 images\)' output

echo "=== resumed: the log goes on, and the rate is a tenth"
"${mpirun[@]}" "$stl10" "${small[@]}" --limit 44 --epochs 2 --lr-step-epochs 1 --model-dir models \
  --log-json log.json --log-every 1 --resume auto < /dev/null > output
expect_lines 0 '^Epoch: \[1\]' output
expect_lines 2 '^Epoch: \[2\]\[ *[0-9]+/11\]' output
expect_lines 2 '^\{"kind":"run",' log.json
expect_lines 1 '^\{"kind":"run",.*"resumed_epoch":1,"resumed_step":0' log.json
expect_lines 11 '^\{"kind":"step","epoch":1,.*"learning_rate":0.01,' log.json
expect_lines 11 '^\{"kind":"step","epoch":2,.*"learning_rate":0.001,' log.json
expect_lines 2 '^\{"kind":"epoch"' log.json

echo "=== no data"
! "$stl10" > output 2>&1 || fail "trained without data"
expect_lines 1 '^examples/stl10/fetch.sh FOLDER downloads STL-10 into FOLDER$' output
! "${mpirun[@]}" "$stl10" absent < /dev/null > output 2>&1 || fail "took a folder that is not there"
expect_lines 1 'Data folder absent does not exist; examples/stl10/fetch.sh FOLDER downloads' output

echo "=== other data"
mkdir -p folder/train/a folder/val/a
touch folder/train/a/1.jpg folder/val/a/1.jpg
! "${mpirun[@]}" "$stl10" --data folder < /dev/null > output 2>&1 || fail "took other data"
expect_lines 1 'stl10 trains on STL-10.s binary version; expected a folder with train_X.bin' output
echo "all as expected"
