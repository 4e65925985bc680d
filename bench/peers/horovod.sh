#!/usr/bin/env bash
# Trains ResNet-18 by Horovod and by hora in turns, 2 ranks, and writes what either adds to its own
# plain step: FOLDER/horovod_ROUND.json and FOLDER/horovod_beside_ROUND.json (hora, c10d on gloo).
# Sets Horovod up in a virtual environment at first, which takes minutes: it is compiled.
#
# Usage: bench/peers/horovod.sh [--build BUILD_FOLDER] [--rounds N] [--set-up-limit SECONDS] FOLDER
# Exit code 77, with one line that says why, where Horovod cannot be had here.
set -euo pipefail

build=build/release rounds=3 limit=900
while (($# > 0)); do
  case $1 in
    --build) build=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    --set-up-limit) limit=$2; shift 2 ;;
    -h | --help) sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$0"; exit ;;
    -*) echo "horovod.sh: unknown option $1; see --help" >&2; exit 2 ;;
    *) break ;;
  esac
done
(($# == 1)) || { echo "horovod.sh: one folder for the results; see --help" >&2; exit 2; }
folder=$(realpath "$1") build=$(realpath "$build")
here=$(dirname "$(realpath "$0")")

skip() {
  echo "no Horovod here: $1"
  exit 77
}

# Debian's Python has Debian's PyTorch, the LibTorch that hora is built with.
readonly python=/usr/bin/python3 version=0.28.1 environment=$build/horovod
"$python" -c 'import torch, torchvision' 2> /dev/null ||
  skip "$python has no torch and torchvision (Debian: python3-torch, python3-torchvision)"
if ! "$environment/bin/python" -c 'import horovod.torch' 2> /dev/null; then
  rm -rf "$environment"
  "$python" -m venv --system-site-packages "$environment" > "$build/horovod.log" 2>&1 ||
    skip "no virtual environment ($(tail -n 1 "$build/horovod.log"); Debian: python3-venv)"
  HOROVOD_WITH_PYTORCH=1 HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1 HOROVOD_WITHOUT_TENSORFLOW=1 \
    HOROVOD_WITHOUT_MXNET=1 MAKEFLAGS=-j2 \
    timeout -k 10 "$limit" "$environment/bin/pip" install --no-build-isolation "horovod==$version" \
    > "$build/horovod.log" 2>&1 ||
    skip "pip could not install it within $limit s; see $build/horovod.log: $(
      grep -i -m 1 'error:\|fatal\|could not' "$build/horovod.log" || tail -n 1 "$build/horovod.log")"
fi
"$environment/bin/python" -c 'import horovod.torch' > "$build/horovod.log" 2>&1 ||
  skip "it cannot be loaded: $(tail -n 1 "$build/horovod.log")"

launcher=(mpirun --bind-to none -np 2)
((EUID != 0)) || launcher+=(--allow-run-as-root)
mkdir -p "$folder"
for ((round = 1; round <= rounds; ++round)); do
  # hora raises malloc's thresholds for its contenders; so that Horovod has the same.
  MALLOC_MMAP_THRESHOLD_=4000000000 MALLOC_TRIM_THRESHOLD_=8000000000 OMP_NUM_THREADS=1 \
    "${launcher[@]}" "$environment/bin/python" -B "$here/horovod_step.py" "$folder/horovod_$round.json"
  "${launcher[@]}" "$build/bench/training_step/training_step" --blocks 6 --steps 4 \
    --contenders hora_copies,c10d_gloo --benchmark_out="$folder/horovod_beside_$round.json"
done
