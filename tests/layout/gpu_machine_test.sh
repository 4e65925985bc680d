#!/usr/bin/env bash
# hora_gpu_use keeps the LD_LIBRARY_PATH that it finds, after LibTorch's folders and the driver's last.
#
# Usage: gpu_machine_test.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder"/{torch/lib,run/bin,run/openmpi/{bin,lib},driver,cuda/lib64}
touch "$folder/torch/lib/libtorch_cuda.so"
cp /bin/true "$folder/run/bin/program"
cp /bin/true "$folder/run/openmpi/bin/mpirun"

use() {
  LD_LIBRARY_PATH=$1 GPU_TORCH=$folder/torch CUDA_HOME=$folder/cuda \
    GPU_DRIVER_FOLDERS="$folder/driver $folder/none" bash -c '
      set -euo pipefail
      source cmake/gpu_machine.sh
      hora_gpu_use "$0"
      echo "$LD_LIBRARY_PATH"' "$folder/run"
}

failed=0
expect() {
  [[ $2 == "$3" ]] && return
  echo "$1: LD_LIBRARY_PATH is" "  $2" "instead of" "  $3" >&2
  failed=1
}
real=$(realpath "$folder")
own=$real/torch/lib:$real/cuda/lib64:$folder/run/lib:$folder/run/openmpi/lib
expect "with a path" "$(use /users/libraries:/more)" "$own:/users/libraries:/more:$folder/driver"
expect "without one" "$(use "")" "$own:$folder/driver"
exit $failed
