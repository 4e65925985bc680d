#!/usr/bin/env bash
# Puts LibTorch's CUDA build into build/libtorch-cuda, once, and prints the folder that CMake takes as
# CMAKE_PREFIX_PATH. Everything else goes to the error stream, so that this serves in $(...).
#
# Usage: cmake/cuda_libtorch.sh [--help]
#
# From PyPI, though nothing of Python is used: torch 2.11.0 for CUDA 13.0 and the three small
# libraries of it that the CUDA toolkit lacks, 1.5 GB unpacked. The rest of CUDA, cuDNN and NCCL
# is taken from this machine, so that a process that has LibTorch and hora in it holds one copy of
# each. Where those are missing, the message names them: a whole LibTorch of your own then serves as
# well (pip install torch), with CMAKE_PREFIX_PATH=<site-packages>/torch in the environment, upon
# which this script prints that folder and installs nothing.
#
# Needs nvcc and the pip of any Python 3; x86-64 or arm64 Linux.
set -euo pipefail

# The three last are the versions that torch's own metadata asks for. The same Python version
# everywhere: wheels of different ones hold libraries that are not the same to the byte.
readonly python_version=3.12
readonly packages=(torch==2.11.0
  nvidia-cusparselt-cu13==0.8.0 nvidia-nvshmem-cu13==3.4.5 'nvidia-cufile~=1.15.0')

say() { echo "$*" >&2; }
stop() { say "cmake/cuda_libtorch.sh: $*"; exit 1; }

if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$0"
  exit 0
fi
(($# == 0)) || stop "unknown argument $1"
root=$(cd "$(dirname "$(realpath "$0")")/.." && pwd)
readonly root folder=$root/build/libtorch-cuda

# own_libtorch: prints the first prefix of the environment that holds a LibTorch with CUDA.
own_libtorch() {
  local prefixes prefix
  IFS=':;' read -ra prefixes <<< "${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do
    [[ -e $prefix/lib/libtorch_cuda.so ]] && { echo "$prefix"; return; }
  done
  return 1
}

# find_pip: sets `pip` to a command that works.
find_pip() {
  local command
  for command in "python3 -m pip" pip3 "/usr/bin/python3 -m pip"; do
    read -ra pip <<< "$command"
    "${pip[@]}" --version > /dev/null 2>&1 && return
  done
  stop "no pip here. Install python3-pip (or another Python 3 with pip), or set CMAKE_PREFIX_PATH" \
    "to the folder of a LibTorch with CUDA."
}

# check_libraries FOLDER: every library that LibTorch's CUDA part needs is found on this machine.
check_libraries() {
  local missing
  missing=$(ldd "$1/torch/lib/libtorch_cuda.so" | awk '/not found/ { print $1 }' | xargs)
  [[ -z $missing ]] || stop "this machine lacks what LibTorch needs beside it: $missing." \
    "Install CUDA 13's libraries, cuDNN 9 and NCCL 2 where the loader finds them (ldconfig or" \
    "LD_LIBRARY_PATH), or set CMAKE_PREFIX_PATH to the folder torch of a whole 'pip install torch'."
}

if own_libtorch; then
  exit 0
fi
command -v nvcc > /dev/null ||
  stop "no nvcc in PATH. Install the CUDA toolkit 13 and add its folder bin to PATH."

# The marker says which packages the folder holds: another list replaces it.
if [[ $(cat "$folder/packages.txt" 2> /dev/null) != "${packages[*]} $python_version" ]]; then
  find_pip
  mkdir -p "$root/build"
  # One installation at a time; a folder that an interrupted one left is removed here.
  exec {lock}> "$root/build/libtorch-cuda.lock"
  flock "$lock"
  if [[ $(cat "$folder/packages.txt" 2> /dev/null) != "${packages[*]} $python_version" ]]; then
    rm -rf "$root"/build/libtorch-cuda.partial.*
    partial=$(mktemp -d "$root/build/libtorch-cuda.partial.XXXXXX")
    trap 'rm -rf "$partial"' EXIT
    chmod 755 "$partial"
    say "Installing ${packages[*]} into build/libtorch-cuda (1.5 GB)"
    # Versions, platform and Python are given, so what pip runs on does not matter.
    PIP_ROOT_USER_ACTION=ignore "${pip[@]}" install --quiet --no-deps --no-compile --only-binary=:all: \
      --python-version "$python_version" --implementation cp \
      --target "$partial" "${packages[@]}" >&2 ||
      stop "pip could not install ${packages[*]}; its message stands above."
    check_libraries "$partial"
    echo "${packages[*]} $python_version" > "$partial/packages.txt"
    rm -rf "$folder"
    mv "$partial" "$folder"
    trap - EXIT
  fi
fi
check_libraries "$folder"
echo "$folder/torch"
