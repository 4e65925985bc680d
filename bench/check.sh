#!/usr/bin/env bash
# Compares a handful of ratios with bench/results/bounds.json, in less than 2 minutes: hora beside its
# peers, in turns in one run. The bounds are generous, and a ratio fails only where three tries miss
# it, so that a busy machine passes and a lost optimisation does not.
#
# Usage: bench/check.sh [BUILD_FOLDER]     (build/release by default; its programs must be built)
# Exit code: 0 only where every bound was kept. A program that is not built is a failure, unless the
# build was configured without what it needs.
set -euo pipefail
case ${1:-} in
  -h | --help) sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$0"; exit ;;
esac
bench=$(dirname "$(realpath "$0")")
build=$(realpath "${1:-$bench/../build/release}")
[[ -x $build/bench/allreduce_perf ]] ||
  { echo "bench/check.sh: $build has no built benchmarks: cmake --build $build" >&2; exit 2; }
mpirun=$(sed -n 's/^MPIEXEC_EXECUTABLE:[A-Z]*=//p' "$build/CMakeCache.txt")
launcher=("${mpirun:-mpirun}")
if "${launcher[0]}" --version 2> /dev/null | grep -q 'Open MPI\|OpenRTE\|PRRTE'; then
  # MPI's waiting ranks yield: on a busy machine its contenders would take minutes otherwise.
  launcher+=(--bind-to none --oversubscribe --mca mpi_yield_when_idle 1)
  ((EUID != 0)) || launcher+=(--allow-run-as-root)
fi
exec python3 -B "$bench/report/check.py" "$bench/results/bounds.json" "$build" "${launcher[@]}"
