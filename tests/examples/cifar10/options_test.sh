#!/usr/bin/env bash
# Families of the CIFAR-10 program's options, a short training on 2 ranks with each, and what comes of
# it. Usage: options_test.sh PREPARE_DIGITS CIFAR10 MPIRUN... (the programs; mpirun with its options)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=made_digits.sh
source "$(dirname "$(realpath "$0")")/made_digits.sh"
prepare_digits=$1 cifar10=$2
shift 2
mpirun=("$@")

work=$(mktemp -d "${TMPDIR:-/tmp}/cifar10_options_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

made_digits 12 4 > digits.csv
"$prepare_digits" --output data < digits.csv

# The variables batch and epochs change what it trains with.
train() {
  "${mpirun[@]}" "$cifar10" --data data -a resnet20 --stem imagenet --limit 64 \
    --batch "${batch:-16}" --epochs "${epochs:-1}" "$@" < /dev/null > output 2>&1
}

# trains OPTION...: with exit code 0, and a finite loss after the last epoch.
trains() {
  echo "=== $*"
  train "$@" || { cat output; fail "exit code $? of $*"; }
  expect_lines 1 'best validation accuracy [0-9.]+ %' output
  expect_lines 0 'loss -?(nan|inf)' output
}

# expect_lines COUNT PATTERN FILE
expect_lines() {
  local found
  found=$(grep -cE -- "$2" "$3" || true)
  [[ $found == "$1" ]] || { cat "$3"; fail "$found lines match '$2', expected $1"; }
}

trains --opt adam --lr .001 --no-norm-decay --label-smoothing .1 --zero-init-residual
expect_lines 1 '^optimizer: adam, gradients averaged, labels smoothed by 0.1$' output

trains --opt adamw --lr .001 --zero --clip-norm 1
expect_lines 1 "^optimizer: adamw, .* optimizer's state in shares \\(ZeRO\\), clipped to 1$" output

trains --zero --fused-update
expect_lines 1 \
  "^optimizer: sgd, .* in shares \\(ZeRO\\), updated by the pass that averages$" output

batch=8 trains --accumulate 2 --sync-bn --lr-schedule step --scale-lr
expect_lines 1 '^batch: 2 x 8 a rank, 32 in all; 1 epochs of 2 steps; seed 1$' output
expect_lines 1 '^optimizer: sgd, .* 2 backward passes a step, BatchNorm over all ranks$' \
  output

# LibTorch 2's CPU kernels have float16.
trains --opt-level O1 --device cpu
expect_lines 1 '^device: cpu, O1: b?float16 \(autocast\), dynamic loss scale' output
trains --opt-level O2 --amp bf16 --device cpu
expect_lines 1 '^device: cpu, O2: bfloat16 model, BatchNorm and master weights float32$' output
trains --opt-level O2 --channels-last --device cpu
expect_lines 1 '^device: cpu, O2: b?float16 model, BatchNorm and master weights float32, dyn' output
# The first scale, 65536, may be too high for float16's gradients.
grep -q ', O2: float16 model' output || expect_lines 0 'gradient overflow' output
echo "=== steps left out for their gradients, the scale halved each time, or fixed"
train --opt-level O2 --lr 1e38 --non-finite ignore --device cpu || { cat output; fail "--lr 1e38"; }
expect_lines 1 '^epoch 1/1, step [12]/2: .* all ranks: gradient overflow; loss scale is now 32768' output
train --opt-level O2 --loss-scale 3e38 --device cpu || { cat output; fail "--loss-scale"; }
expect_lines 2 '^epoch 1/1, step ./2: .* gradient overflow; loss scale stays 3e\+38$' output
echo "=== every step of the second epoch left out"
epochs=2 train --lr 1e38 --non-finite skip || { cat output; fail "--non-finite skip"; }
expect_lines 1 '^epoch 2/2: every step was left out, validation ' output
expect_lines 0 '^epoch 2/2: loss' output
echo "=== modes of one process"
! train --mode single || fail "--mode single on 2 ranks"
expect_lines 1 'cifar10, rank 0: --mode single trains in one process, and this job has 2 ranks' output
"$cifar10" --data data -a resnet20 --limit 64 --batch 16 --epochs 1 --mode single < /dev/null > output
expect_lines 1 'best validation accuracy [0-9.]+ %, [0-9]+ images/s, trained' output
! "$cifar10" --data data --mode data-parallel --device cpu < /dev/null > output 2>&1 ||
  fail "--mode data-parallel on the CPU"
expect_lines 1 '^cifar10, rank 0: --mode data-parallel needs GPUs, and --device is cpu' output

trains --compression bf16 --amp bf16 --channels-last
expect_lines 1 '^optimizer: sgd, gradients averaged, as bfloat16$' output

trains --width 8 --lr-scheduler cosineannealinglr
expect_lines 1 "^model: resnet20 of width 8 with torchvision's stem, 69010 values$" output

epochs=2 trains --compression powersgd --eval-every 2 --print-freq 1 --model-dir models --save x.pt
expect_lines 1 '^epoch 1/2: loss [0-9.]+, [0-9]+ images/s, waited' output
expect_lines 1 '^epoch 2/2: loss [0-9.]+, validation' output
expect_lines 4 \
  '^Epoch: \[[12]\]\[[12]/2\] +rank 0: Time .* Data .* Loss .* Acc@1 .* Acc@5 +[0-9.]+ \( *[0-9.]+\)' output
accuracy=$(sed -n 's/^epoch 2.* validation \([0-9.]* % ([0-9]* of 64 images)\).*/\1/p' output)

expect_lines 1 "saved the model to x.pt, LibTorch's archive" output
[[ $(head -c 2 x.pt) == PK ]] || fail "what --save x.pt wrote"

echo "=== --evaluate counts what the training has counted"
train --evaluate --weights models/best/weights.safetensors || { cat output; fail "--evaluate"; }
grep -qF "validation $accuracy, top-5" output || { cat output; fail "expected $accuracy"; }
expect_lines 0 'epoch 1/' output
train --evaluate --resume models --compression powersgd || { cat output; fail "--resume"; }
grep -qF "validation $accuracy, top-5" output || { cat output; fail "expected $accuracy"; }

epochs=9 trains --desired-acc 1 --report report.json
expect_lines 1 '^reached [0-9.]+ % \(desired: 1 %\) after epoch [1-9], in 0:[0-9]+$' output
expect_lines 1 '"seconds_to_accuracy": [0-9.]+' report.json

echo "=== what cannot be is refused before the start"
refused() {
  local pattern=$1
  shift
  if train "$@"; then fail "accepted $*"; fi
  expect_lines 1 "$pattern" output
  expect_lines 0 '^(data|epoch)' output
}
refused '^--zero: averages uncompressed' --zero --compression fp16
refused '^--fused-update: does not go with --clip-norm' --zero --fused-update --clip-norm 1
refused 'absent.safetensors' --weights absent.safetensors
refused 'x.pt.*: it is no safetensors file' --weights x.pt
refused '64 training images in batches of 16 for 2 ranks with --accumulate 17; expected at least 2' \
  --accumulate 17
echo "all as expected"
