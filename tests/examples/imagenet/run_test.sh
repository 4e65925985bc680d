#!/usr/bin/env bash
# imagenet on a few JPEG and PNG files, alone and on 2 ranks, each a node; a truncated image ends the training on both ranks, or another takes its place.
# Usage: run_test.sh IMAGENET PHOTOGRAPH IMAGES MPIRUN... (the program; a JPEG file; a folder of
# small images; mpirun with its options)
set -euo pipefail
imagenet=$1 photograph=$2 images=$3
shift 3
mpirun=("$@")

work=$(mktemp -d "${TMPDIR:-/tmp}/imagenet_run_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
  cat output
  echo "FAILED: $*"
  exit 1
}

# expect_lines COUNT PATTERN FILE
expect_lines() {
  local found
  found=$(grep -cE -- "$2" "$3" || true)
  [[ $found == "$1" ]] || fail "$found lines match '$2', expected $1"
}

for part in train val; do
  mkdir -p "data/$part/n1 tench" "data/$part/n2 Käfer"
  cp "$photograph" "data/$part/n1 tench/photograph.JPEG"
  cp "$images"/{rgb_420,rgb_444,progressive}.jpg "data/$part/n1 tench"
  cp "$images"/{cmyk,grey,restarts}.jpg "$images/rgb.png" "data/$part/n2 Käfer"
done

# A hang is an error, too.
train() {
  timeout --foreground --kill-after=10 200 "$@" --data data -a resnet20 --stem imagenet -b 2 -j 2 \
    --epochs 1 < /dev/null
}

echo "=== alone"
train "$imagenet" -p 1 > output
expect_lines 1 'data: the images in data, 8 training and 8 validation images' output
expect_lines 4 '^Epoch: \[1\]\[[1-4]/4\]' output
expect_lines 1 '^epoch 1/1: loss [0-9.]+, validation [0-9.]+ % \([0-8] of 8 images\)' output

echo "=== 2 ranks"
train "${mpirun[@]}" "$imagenet" --report report.json > output
expect_lines 1 '^Epoch: \[1\]\[1/2\]' output
expect_lines 1 '"data": "image-folder",' report.json

echo "=== a truncated image is named, and ends the training"
head -c 20000 "$photograph" > "data/train/n1 tench/photograph.JPEG"
status=0
train "${mpirun[@]}" "$imagenet" > output 2>&1 || status=$?
((status != 0 && status != 124 && status != 137)) || fail "exit status $status"
expect_lines 1 '^imagenet: data/train/n1 tench/photograph.JPEG' output
expect_lines 0 '^best validation accuracy' output

echo "=== or another takes its place"
train "${mpirun[@]}" "$imagenet" --bad-images skip > output 2>&1 || fail "did not skip it"
expect_lines 1 'data/train/n1 tench/photograph.JPEG' output
expect_lines 1 '^best validation accuracy' output

echo "=== other data"
mkdir records
printf 'airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n' \
  > records/batches.meta.txt
for file in data_batch_{1..5} test_batch; do
  head -c $((4 * 3073)) /dev/zero > "records/$file.bin"
done
! "$imagenet" records < /dev/null > output 2>&1 || fail "took CIFAR-10"
expect_lines 1 'imagenet trains on JPEG and PNG files; expected a folder with train/CLASS' output
echo "all as expected"
