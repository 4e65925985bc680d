#!/usr/bin/env bash
# Trains the CIFAR-10 example on two emulated hosts and on two virtual nodes, 2 ranks each: the
# saved models must be equal, byte by byte.
# Usage: cifar10_same_model.sh PREPARE_DIGITS CIFAR10 (the two programs)
set -euo pipefail
here=$(dirname "$(realpath "$0")")
prepare_digits=$1 cifar10=$2

work=$(mktemp -d "${TMPDIR:-/tmp}/cifar10_same_model.XXXXXX")
trap 'rm -rf "$work"' EXIT

# Random dots and labels in the digits' layout: what is learnt does not matter here.
awk 'BEGIN {
  srand(1)
  for (image = 0; image < 1797; ++image) {
    for (pixel = 0; pixel < 64; ++pixel) printf "%d,", int(rand() * 17)
    printf "%d\n", image % 10
  }
}' | "$prepare_digits" --output "$work/data"

mkdir "$work/hosts" "$work/nodes"
options=(--data "$work/data" --epochs 1 --limit 64 --batch 8 --seed 3)

# Two steps, each of which averages 44.7 MB of gradients.
status=0
"$here/two_hosts.sh" --min-bytes 80000000 "$cifar10" "${options[@]}" \
  --save "$work/hosts/model" --report "$work/hosts/report" || status=$?
((status == 0)) || exit "$status"

OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 HORA_RANKS_PER_NODE=2 \
  mpirun -np 4 --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
  --mca btl self,vader,tcp "$cifar10" "${options[@]}" \
  --save "$work/nodes/model" --report "$work/nodes/report" < /dev/null

for report in "$work"/*/report; do
  grep -qE '"nodes": *2' "$report" || { cat "$report"; echo "not on two nodes"; exit 1; }
done
cmp "$work/hosts/model" "$work/nodes/model"
echo "The two models are equal"
