#!/usr/bin/env bash
# Measures hora on a machine with a GPU.
#
# Usage: bench/gpu.sh [pack FOLDER | run [FOLDER]]
#   as tests/gpu.sh: pack collects programs and MPI on a machine with compilers, run FOLDER runs them
#   on the GPU machine; run alone does both here. tests/gpu.sh and bench/gpu.sh may share a folder.
#
# Variables: GPU_TORCH, GPU_MPI, GPU_ARCHITECTURES, GPU_ONLY as in tests/gpu.sh;
#   GPU_BATCH   images a step of ResNet-50 [128]
#   OUT              folder for log.txt and results.txt [build/gpu-bench]
# Exit code: 0 only where everything ran and no result was wrong; 77 where there is no GPU.
set -euo pipefail
script=$(realpath "$0")
OUT=$(realpath -m "${OUT:-$(dirname "$script")/../build/gpu-bench}")
folder=''
(($# < 2)) || folder=$(realpath -m -- "$2")
cd "$(dirname "$script")/.."
export OUT
source cmake/gpu_machine.sh

readonly programs=(copy_perf gpu_training_step mpi_cuda_support staged_allreduce)

run() {
  local bin=$1/bin batch=${GPU_BATCH:-128} precision
  mkdir -p "$OUT"
  hora_gpu_use "$1"
  hora_gpu_show_libraries "$1" > "$OUT/log.txt" || { cat "$OUT/log.txt"; exit 1; }
  nvidia-smi | tee -a "$OUT/log.txt" || echo "no nvidia-smi here"

  GPU_LINES=40  # of a step, on the screen
  hora_gpu_step "pack and unpack of 161 gradients" 120 "$bin/copy_perf"
  for precision in fp32 tf32 fp16 bf16; do
    hora_gpu_step "training step, $precision" 150 \
      "${mpirun[@]}" -np 1 "$bin/gpu_training_step" --batch "$batch" --precision "$precision"
  done
  hora_gpu_step "averages over pinned memory" 120 \
    env HORA_RANKS_PER_NODE=1 HORA_GPU_NETWORK=mpi "${mpirun[@]}" -np 2 "$bin/staged_allreduce"
  # Longer chunks: fewer, larger copies.
  hora_gpu_step "averages over pinned memory, 4 MiB chunks" 120 \
    env HORA_RANKS_PER_NODE=1 HORA_GPU_NETWORK=mpi HORA_CHUNK_SIZE=4MiB \
    "${mpirun[@]}" -np 2 "$bin/staged_allreduce"
  # Over pinned memory again, then from GPU memory straight into MPI, where that takes it.
  hora_gpu_step "averages from GPU memory" 150 bash "$script" device_staging "$1"
  hora_gpu_results
}

case ${1:-run} in
  -h | --help) sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$script" ;;
  pack)
    (($# == 2)) || hora_gpu_stop "pack needs a folder; see --help"
    hora_gpu_pack "$folder" "${programs[@]}"
    ;;
  run)
    (($# <= 2)) || hora_gpu_stop "run takes one folder at most; see --help"
    hora_gpu_choose "$folder" benchmarks "${programs[@]}"
    run "$folder"
    ;;
  device_staging) # one step, as a command of its own
    hora_gpu_use "$folder"
    HORA_RANKS_PER_NODE=1 HORA_GPU_NETWORK=mpi hora_gpu_cuda_aware "$folder" \
      "${mpirun_gpu[@]}" -np 2 "$folder/bin/staged_allreduce"
    ;;
  *) hora_gpu_stop "unknown mode $1; see --help" ;;
esac
