#!/usr/bin/env bash
# TensorBoard's own reader finds in the event file of a training what its JSON log has.
# Usage: tensorboard_test.sh PREPARE_DIGITS CIFAR10 READ_EVENTS
# TEST_PYTHON: a Python with PyPI's tensorboard, such as cmake/python_readers.sh makes [default: python3]
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=made_digits.sh
source "$(dirname "$(realpath "$0")")/made_digits.sh"
prepare_digits=$1 cifar10=$2 python=${TEST_PYTHON:-python3}
read_events() {
  "$python" -B "$script" "$@"
}
script=$3

code=0
read_events --check || code=$?
((code != 77)) || echo "NOT RUN: this Python lacks PyPI's tensorboard; see cmake/python_readers.sh"
((code == 0)) || exit "$code"

work=$(mktemp -d "${TMPDIR:-/tmp}/cifar10_tensorboard_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
made_digits 12 4 > digits.csv
"$prepare_digits" --output data < digits.csv
"$cifar10" --data data -a resnet20 --stem imagenet --limit 176 --batch 16 --epochs 3 --log-every 4 \
  --log-json log.json --tensorboard events < /dev/null > output 2>&1 || fail "exit code $?"

read_events events log.json > output || fail "they differ"
cat output
# 3 epochs of 3 entries of 8 values, and of 3 values.
grep -qF 'TensorBoard reads 11 tags, 81 scalars' output || fail "expected 11 tags, 81 scalars"

echo "=== a difference is seen"
sed -E '$s/"loss":[0-9.e-]+/"loss":1.25/' log.json > other.json
! cmp -s log.json other.json || fail "the log's last line has no loss"
! read_events events other.json > output || fail "took another log"
grep -q '^loss/epoch: ' output || fail "does not name the tag"
echo "all as expected"
