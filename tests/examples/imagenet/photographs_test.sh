#!/usr/bin/env bash
# imagenet learns: two epochs on the made folder of photographs, 2 ranks under horarun, from files to
# an accuracy that is far above chance (10 %), which the checkpoint then has by itself.
# Usage: photographs_test.sh MAKE_PHOTOGRAPHS HORARUN IMAGENET
set -euo pipefail
make_photographs=$1 horarun=$2 imagenet=$3
work=$(mktemp -d "${TMPDIR:-/tmp}/photographs_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
  tail -n 30 output
  echo "FAILED: $*"
  exit 1
}

for python in python3 /usr/bin/python3; do
  ! "$python" -c 'import PIL, matplotlib, scipy, sklearn' 2> /dev/null || break
done
"$python" "$make_photographs" photographs > output 2>&1 || fail "no photographs"

train() {
  timeout --kill-after=10 200 "$horarun" -np 2 "$imagenet" photographs -a resnet20 --stem imagenet \
    -b 8 -j 1 --opt adam --lr 0.001 --model-dir models "$@" < /dev/null > output 2>&1 || fail "exit code $?"
}
# The last line's accuracy of 120 images, in percent without its fraction.
accuracy() {
  sed -nE 's/.*validation ([0-9]+)[.0-9]* % \([0-9]+ of 120 images\).*/\1/p' output | tail -n 1
}

train --epochs 2 --seed 1
cat output
reached=$(accuracy)
[[ -n $reached ]] || fail "no accuracy"
((reached >= 50)) || fail "only $reached % after two epochs"

train --evaluate --resume auto
cat output
[[ $(accuracy) == "$reached" ]] || fail "the checkpoint has $(accuracy) %, the training had $reached %"
echo "all as expected"
