#!/usr/bin/env bash
# tests/gpu.sh and bench/gpu.sh with programs that only say that they ran: what each part runs and in
# which order, and that failures and what did not run are seen in the exit code.
#
# Usage: gpu_scripts_test.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu_scripts_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
unset GPU_PART GPU_ONLY GPU_BUDGET GPU_LINES GPU_MPI GPU_BATCH
mkdir -p "$work"/{torch/lib,run/bin,run/lib/compiler,run/openmpi/bin,run/data,tools}
touch "$work/torch/lib/libtorch_cuda.so"
export GPU_TORCH=$work/torch CUDA_HOME=$work/none OUT=$work/out CALLS=$work/calls
export PATH=$work/tools:$PATH

# stub FILE <<< TEXT: a script that notes its name and arguments, then does TEXT.
stub() {
  {
    printf '#!/bin/bash\necho "%s $*" >> "$CALLS"\n' "$(basename "$1")"
    cat
  } > "$1"
  chmod +x "$1"
}
# Runs the program once, whatever -np says; 0 as its rank.
cat > "$work/run/openmpi/bin/mpirun" << 'END'
#!/bin/bash
[[ $1 != --version ]] || { echo "mpirun (Open MPI) 5.0.11"; exit; }
while [[ $1 == -* ]]; do
  case $1 in
    --oversubscribe) shift ;;
    --mca) shift 3 ;;
    -np) ranks=$2; shift 2 ;;
    *) shift 2 ;;
  esac
done
echo "$ranks ranks, ${HORA_RANKS_PER_NODE:-all} a node: ${*##*/}" >> "$CALLS"
exec "$@"
END
chmod +x "$work/run/openmpi/bin/mpirun"
for program in batched_copy_test device_reduce_test batched_update_test gpu_collectives_test \
  gpu_torch_test mpi_cuda_support copy_perf device_allreduce gpu_training_step staged_allreduce; do
  stub "$work/run/bin/$program" <<< 'exit "${STUB_CODE:-0}"'
done
stub "$work/run/bin/kill_peer" << 'END'
echo "rank 0: process 999999999"
echo "rank 1: killed"
echo "rank 0: free after 40 ms: gone"
exit 3
END
stub "$work/run/bin/cifar10" << 'END'
while [[ $1 != --report ]]; do shift; done
echo "{\"best_accuracy\": ${ACCURACY:-96.5}}" > "$2"
END
stub "$work/tools/nvidia-smi" << 'END'
echo "a GPU"
[[ $1 != --list-gpus ]] || echo "another"
END
# Options up to the program.
stub "$work/tools/compute-sanitizer" << 'END'
[[ $1 != --version ]] || { echo "Version 2025.3.1"; exit; }
while [[ $1 != */bin/* ]]; do shift; done
exec "$@"
END

fail() {
  tail -n 60 "$work/output"
  echo "FAILED: $*"
  exit 1
}
# run CODE SCRIPT ARGUMENT...
run() {
  local wanted=$1 code=0
  : > "$CALLS"
  bash "${@:2}" > "$work/output" 2>&1 || code=$?
  ((code == wanted)) || fail "exit code $code instead of $wanted: ${*:2}"
}
# all_passed SCRIPT: every step that it lists runs, in that order, and passes.
all_passed() {
  local part
  run 0 "$1" run "$work/run"
  for part in 1 2 3; do
    diff <(bash "$1" --list --part "$part" | sed -nE 's/^ +[0-9]\.[0-9]+ +[0-9]+ s  //p') \
      <(sed -nE 's/^passed +[0-9]+ s  [0-9]\.[0-9]+  //p' "$OUT/part$part/results.txt") ||
      fail "part $part of $1 ran other steps than it lists"
    grep -q 'ldd' "$OUT/part$part/01-machine-and-libraries.log" || fail "no ldd in part $part"
    grep -q 'a GPU' "$OUT/part$part/01-machine-and-libraries.log" || fail "no versions in part $part"
  done
}
# first_calls LINE...: how what the last run has started begins
first_calls() {
  diff <(grep -vE '^nvidia-smi|^compute-sanitizer --version' "$CALLS" | head -n $#) \
    <(printf '%s\n' "$@") || fail "it begins otherwise"
}

all_passed tests/gpu.sh
first_calls 'batched_copy_test ' 'device_reduce_test ' 'batched_update_test ' \
  '1 ranks, 1 a node: gpu_collectives_test' 'gpu_collectives_test ' \
  '1 ranks, 1 a node: gpu_torch_test' 'gpu_torch_test ' \
  '2 ranks, 2 a node: host_of_rank.sh gpu_collectives_test' 'gpu_collectives_test ' \
  '2 ranks, 2 a node: host_of_rank.sh gpu_torch_test' 'gpu_torch_test '
grep -q -- '--device cuda .*--amp bf16' "$CALLS" || fail "no training in bf16"
grep -q '^compute-sanitizer .*--tool memcheck --track-stream-ordered-races all .*gpu_torch_test' \
  "$CALLS" || fail "no step with races in stream order"
grep -q '"figures": \[{"best_accuracy": 96.5}\]' "$OUT"/part1/*-digits-*.json || fail "no accuracy"
all_passed bench/gpu.sh
first_calls 'copy_perf ' \
  '1 ranks, all a node: gpu_training_step --batch 128 --precision bf16 --c10d 0'

# What pack has packed is unpacked, again where there is another archive.
mkdir "$work/packed"
for name in programs benchmarks; do tar -czC "$work/run" -f "$work/packed/$name.tar.gz" .; done
GPU_ONLY=kernel run 0 tests/gpu.sh --part 1 run "$work/packed"
GPU_ONLY=bf16 run 0 bench/gpu.sh --part 1 run "$work/packed"
rm "$work/packed/programs/bin/batched_copy_test"
GPU_ONLY=kernel run 1 tests/gpu.sh --part 1 run "$work/packed"
touch -d '+1 minute' "$work/packed/programs.tar.gz"
GPU_ONLY=kernel run 0 tests/gpu.sh --part 1 run "$work/packed"

# What fails or does not run is seen.
ACCURACY=94.9 GPU_ONLY=digits run 1 tests/gpu.sh --part 1 run "$work/run"
STUB_CODE=1 GPU_ONLY=kernel run 1 tests/gpu.sh --part 3 run "$work/run"
STUB_CODE=77 run 77 bench/gpu.sh --part 2 run "$work/run"
rm "$work/tools/compute-sanitizer"
GPU_ONLY=memcheck run 77 tests/gpu.sh --part 3 run "$work/run"
grep -q 'not run .*memcheck: no compute-sanitizer here' "$work/output" || fail "no reason is given"
mv "$work/run/data" "$work/data"
GPU_ONLY=digits run 77 tests/gpu.sh --part 2 run "$work/run"
echo "all as expected"
