#!/usr/bin/env bash
# Measures hora on a machine with a GPU, in three parts of at most nine minutes; what tells most comes
# first. What it is compared with runs in the same processes, in turn.
#
# Usage: bench/gpu.sh [option...] [run [FOLDER] | pack FOLDER]
#   as tests/gpu.sh: pack writes FOLDER/benchmarks.tar.gz, programs and MPI, on a machine with
#   compilers; run FOLDER runs them on the GPU machine; run alone does both here.
#
# Options:
#   --part N     only part 1, 2 or 3 [all, one after another]
#   --list       prints the steps with their longest times, and runs nothing
#   --out FOLDER of each step a log and a JSON with its figures, of each part a table:
#                cmake/gpu_steps.sh names them [$OUT, else build/gpu-bench]
#
# Variables: GPU_TORCH, GPU_MPI, GPU_ARCHITECTURES, GPU_MOST, GPU_ONLY, GPU_BUDGET as in tests/gpu.sh;
#   GPU_BATCH   images a step of ResNet-50 [128]
# Exit code: 0 only where everything ran and no result was wrong; 1 where a step failed; 77 where none
# failed but some did not run, as without a GPU; 2 for wrong arguments.
set -euo pipefail
script=$(realpath "$0")
root=$(dirname "$(dirname "$script")")
source "$root/cmake/gpu_machine.sh"
source "$root/cmake/gpu_steps.sh"
hora_gpu_arguments "$root/build/gpu-bench" "$@"
cd "$root"

readonly programs=(copy_perf device_allreduce gpu_training_step mpi_cuda_support staged_allreduce)

# From GPU memory straight into MPI, as a command of its own.
cuda_aware() {
  HORA_RANKS_PER_NODE=1 HORA_GPU_NETWORK=mpi hora_gpu_cuda_aware "$folder" \
    "${mpirun_gpu[@]}" -np 2 "$folder/bin/staged_allreduce"
}

# rank_a_gpu PROGRAM...: on all GPUs, as a command of its own.
rank_a_gpu() {
  local gpus
  gpus=$(nvidia-smi --list-gpus | wc -l) || gpus=0
  ((gpus > 1)) || { echo "not run: it takes two GPUs"; return 77; }
  "${mpirun[@]}" -np "$gpus" "$@"
}

# training NAME OPTION...: on one rank
training() {
  hora_gpu_step "training step, $1" 150 "${mpirun[@]}" -np 1 "$folder/bin/gpu_training_step" \
    --batch "${GPU_BATCH:-128}" "${@:2}"
}

steps() {
  local bin=$folder/bin
  local slow=(--blocks 5 --steps 5)  # without tensor cores; what is cut off gives no figures
  GPU_LINES=40  # of a step, on the screen
  hora_gpu_part 1 "copies, training steps of one rank, an allreduce"
  hora_gpu_step "pack and unpack of 161 gradients" 90 "$bin/copy_perf"
  # Rows without c10d as well: they remain where that one ends the process.
  training "bf16" --precision bf16 --c10d 0
  training "fp32, beside c10d" --precision fp32 "${slow[@]}"
  training "bf16, beside c10d" --precision bf16
  training "tf32, beside c10d" --precision tf32
  hora_gpu_step "allreduce in nccl-tests' columns, 1 rank" 90 \
    "${mpirun[@]}" -np 1 "$bin/device_allreduce"

  hora_gpu_part 2 "between nodes over pinned memory, other training steps"
  hora_gpu_step "averages over pinned memory" 120 \
    env HORA_RANKS_PER_NODE=1 HORA_GPU_NETWORK=mpi "${mpirun[@]}" -np 2 "$bin/staged_allreduce"
  # Longer chunks: fewer, larger copies.
  hora_gpu_step "averages over pinned memory, 4 MiB chunks" 120 \
    env HORA_RANKS_PER_NODE=1 HORA_GPU_NETWORK=mpi HORA_CHUNK_SIZE=4MiB \
    "${mpirun[@]}" -np 2 "$bin/staged_allreduce"
  training "fp16, beside c10d" --precision fp16
  training "bf16, not channels-last" --precision bf16 --channels-last 0
  training "fp32, not channels-last" --precision fp32 --channels-last 0 "${slow[@]}"

  hora_gpu_part 3 "CUDA-aware MPI, two ranks that share the GPU"
  # Over pinned memory again, then from GPU memory straight into MPI, where that takes it.
  hora_gpu_step "averages from GPU memory" 150 bash "$script" run "$folder" own cuda_aware
  # NCCL's messages go over sockets: results are checked, times say nothing about GPUs.
  hora_gpu_step "allreduce in nccl-tests' columns, 2 ranks over sockets" 150 \
    env HORA_RANKS_PER_NODE=2 "${mpirun[@]}" -np 2 tests/gpu/host_of_rank.sh \
    "$bin/device_allreduce" --megabytes 1 16
  # A GPU for each rank, where there are several.
  local windows
  for windows in off on; do
    hora_gpu_step "allreduce in nccl-tests' columns, a rank a GPU, windows $windows" 120 \
      env HORA_NCCL_WINDOWS="$windows" bash "$script" run "$folder" own rank_a_gpu \
      "$bin/device_allreduce" --megabytes 1 2 25 100
  done
}

case $hora_gpu_mode in
  help) sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$script" ;;
  list)
    mpirun=(mpirun)
    hora_gpu_list
    ;;
  pack)
    hora_gpu_collect build/gpu/packed/benchmarks "${programs[@]}"
    hora_gpu_archive build/gpu/packed/benchmarks "$folder/benchmarks.tar.gz"
    ;;
  run)
    hora_gpu_choose "$folder" benchmarks "${programs[@]}"
    hora_gpu_use "$folder"
    hora_gpu_run_steps bash "$script" run "$folder" own hora_gpu_show_machine "$folder"
    ;;
  own)
    hora_gpu_use "$folder"
    "${hora_gpu_own[@]}"
    ;;
esac
