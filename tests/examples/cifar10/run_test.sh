#!/usr/bin/env bash
# The CIFAR-10 program on 2 ranks, each a node: its report, what it prints, the same bits from the
# same seed, and how it refuses bad files.
# Usage: run_test.sh PREPARE_DIGITS CIFAR10 MPIRUN... (the programs; mpirun with its options)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=made_digits.sh
source "$(dirname "$(realpath "$0")")/made_digits.sh"
prepare_digits=$1 cifar10=$2
shift 2
mpirun=("$@")

work=$(mktemp -d "${TMPDIR:-/tmp}/cifar10_run_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

made_digits 12 4 > digits.csv
"$prepare_digits" --output data < digits.csv

train() {
  "${mpirun[@]}" "$cifar10" -a resnet20 --epochs 2 --limit "${limit:-128}" --batch 16 --stem imagenet "$@" \
    < /dev/null
}

# expect_lines COUNT PATTERN FILE
expect_lines() {
  local found
  found=$(grep -cE -- "$2" "$3" || true)
  [[ $found == "$1" ]] || { cat "$3"; fail "$found lines match '$2', expected $1"; }
}

echo "=== report, output, saved model"
train --data data --seed 5 --report report.json --save first.safetensors --log-json log.json \
  --tensorboard events > output
cat output report.json
# Rank 0 alone prints, and what mpirun hides from it is no terminal.
expect_lines 1 'data: handwritten digits .*not CIFAR-10.* 128 training and 128 validation' output
expect_lines 1 "model: resnet20 with torchvision's stem, 271642 values" output
expect_lines 1 'ranks: 2 on 2 nodes \(1 \+ 1\)' output
expect_lines 1 'batch: 16 a rank, 32 in all; 2 epochs of 4 steps; seed 5' output
expect_lines 1 'epoch 1/2: loss [0-9.]+, validation [0-9.]+ % \([0-9]+ of 128 images\), top-5 [0-9.]+ %, best [0-9.]+ %, [0-9]+ images/s' output
expect_lines 1 'epoch 2/2: .*, waited for data in [0-9.]+ % of the time, learning rate [0-9.e-]+$' output
expect_lines 1 'best validation accuracy .* images/s, .* hidden' output
expect_lines 0 $'\r\x1b' output
awk -F'[:,]' '
  /"best_accuracy"/ && $2 >= 0 && $2 <= 100 { ++right }
  /"images_per_second"/ && $2 > 0 { ++right }
  /"hidden_share"/ && $2 >= 0 && $2 <= 1 { ++right }
  /"ranks": 2,/ || /"nodes": 2,/ || /"data": "digits",/ || /"epochs": 2$/ { ++right }
  /":/ { ++fields }
  END { exit !(right == 7 && fields == 7) }' report.json || fail "the report's fields"

expect_lines 1 '^\{"kind":"run","ranks":2,"nodes":2,"batch":16,"epochs":2,"steps":4,' log.json
expect_lines 2 '^\{"kind":"step","epoch":[12],"step":4,"loss":[0-9.e-]+,"top1":[0-9.]+,' log.json
expect_lines 2 '^\{"kind":"epoch",.*,"steps":4,.*"validation_seconds":[0-9.e-]+\}$' log.json
expect_lines 5 . log.json
[[ $(find events -name 'events.out.tfevents.*' -size +500c | wc -l) == 1 ]] || fail "the event file"

echo "=== one seed, one result, whatever the number of workers"
train --data data --seed 5 --workers 0 --save second.safetensors > output
cmp first.safetensors second.safetensors
train --data data --evaluate --weights first.safetensors > output
expect_lines 1 '^validation [0-9.]+ % ' output

echo "=== resumed after an epoch, the same bits"
train --data data --seed 5 --model-dir models --save unbroken.safetensors > output
cmp first.safetensors unbroken.safetensors
rm -r models/last models/best  # of epoch 2; the one before is left
train --data data --seed 5 --model-dir models --resume auto --save resumed.safetensors > output
expect_lines 1 '^resumed after epoch 1 from models$' output
cmp first.safetensors resumed.safetensors
train --data data --seed 5 --model-dir models --resume auto > output
expect_lines 1 '^best validation accuracy [0-9.]+ %, trained and validated in' output  # no step was left
! train --data data --model-dir models --log-json log.json > output 2>&1 || fail "the training before is replaced"
grep -q -- '--model-dir models: it has a training already' output || fail "no reason"
expect_lines 5 . log.json
! train --data data --resume nowhere > output 2>&1 || fail "--resume of nothing"
grep -q -- '--resume nowhere: there is no checkpoint' output || fail "no reason"

echo "=== another seed, another result"
train --data data --seed 6 --save third.safetensors > output
! cmp -s first.safetensors third.safetensors || fail "the seed changes nothing"

echo "=== steps that are not finite: named, and left out by all or the end of all"
train --data data --seed 5 --lr 1e38 --non-finite skip > output
expect_lines 1 'epoch 1/2, step 4/4: left out on all ranks: (NaN|Inf) in .* of rank [01]$' output
expect_lines 1 'epoch 1/2: loss [0-9.]+, ' output
expect_lines 1 'epoch 2/2, step 4/4: left out on all ranks' output
! train --data data --seed 5 --lr 1e38 > output 2>&1 || fail "went on with values that are not finite"
# Both end with the same cause: one that has not looked yet may have it from the other.
ended='(rank [01] \(host [^)]*\) has ended the job: )?'
expect_lines 2 "^cifar10: ${ended}FiniteCheck: (NaN|Inf) in (the loss|the gradient of '[a-z0-9.]+') of rank [01], " output
expect_lines 0 'epoch 1/2' output

echo "=== another network"
train --data data -a resnet18 --batch 512 > output
expect_lines 1 'batch: 64 a rank \(--batch 512 is more than the images are enough for\), 128 in all' output
expect_lines 1 "model: resnet18 with torchvision's stem, 11181642 values" output
expect_lines 1 'best validation accuracy ' output

echo "=== files with fewer whole records are a subset, by name"
cp -r data subset
head -c $((100 * 3073)) data/data_batch_1.bin > subset/data_batch_1.bin
limit=0 train --data subset --report subset.json > output
expect_lines 1 'data: a subset of handwritten digits .*, 100 training and 360 validation' output
expect_lines 1 '"data": "digits-subset"' subset.json

echo "=== ranks that have found different data"
ln -s data rank0
ln -s subset rank1
# shellcheck disable=SC2016  # for each rank to expand
if "${mpirun[@]}" bash -c '"$0" --epochs 1 --data rank${OMPI_COMM_WORLD_RANK:-$PMI_RANK}' "$cifar10" \
  < /dev/null > output 2>&1; then
  fail "accepted different data"
fi
grep -q 'cifar10: ranks have found different data: 100 to 1437 training images' output ||
  fail "does not say that data differ"

echo "=== bad files are named once, with their sizes"
cp -r data truncated
head -c 3000 data/test_batch.bin > truncated/test_batch.bin
cp -r data labelled
printf '\x0a' | dd of=labelled/data_batch_1.bin bs=1 seek=6146 conv=notrunc status=none
cp -r data missing
rm missing/data_batch_1.bin
expect_refused() {
  local pattern=$1
  shift
  if train "$@" > output 2>&1; then
    fail "accepted $*"
  fi
  expect_lines 1 "$pattern" output
  expect_lines 0 'epoch' output
}
expect_refused 'truncated/test_batch.bin is truncated: found 3000 bytes; expected 1106280 bytes' \
  --data truncated
expect_refused 'labelled/data_batch_1.bin: record 2 .byte 6146. has label 10; labels are 0 to 9' \
  --data labelled
mkdir fifo
mkfifo fifo/batches.meta.txt
expect_refused 'fifo/batches.meta.txt is not a regular file' --data fifo
expect_refused 'missing/data_batch_1.bin is missing: found 0 bytes; expected 4415901 bytes' \
  --data missing
expect_refused 'absent does not exist' --data absent
expect_refused 'there is no folder absent; make it first' --data data --report absent/report.json
expect_refused 'Cannot make folder fifo/batches.meta.txt/models: Not a directory' --data data \
  --model-dir fifo/batches.meta.txt/models
expect_refused 'Cannot open absent/log.json: No such file' --data data --log-json absent/log.json
expect_refused 'momentum' --data data --momentum 2
limit=3 expect_refused '3 training images in batches of 16 for 2 ranks' --data data
echo "all as expected"
