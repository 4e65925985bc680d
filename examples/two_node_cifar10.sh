#!/usr/bin/env bash
# Trains ResNet-18 on two nodes, 2 ranks each: installs what is missing, builds, prepares the data,
# trains. On a fresh Debian 12, as root or with sudo; elsewhere it names the missing packages.
set -euo pipefail
root=$(dirname "$(dirname "$(realpath "$0")")")

usage() {
  cat <<'EOF'
Usage: examples/two_node_cifar10.sh [option...] [-- option of the program...]

  --hosts LIST         real nodes with their ranks, such as a:2,b:2, reached by ssh; the build and
                       the data must lie in the same folder on all of them
                       [default: 2 virtual nodes x 2 ranks on this host]
  --data DIR           folder with CIFAR-10, binary version [default: CIFAR-10 downloaded from its
                       publisher, or else Debian's 1,797 handwritten digits]
  --no-train           set up only: packages, build, data
  --epochs N           passes over the training images [default: 4]
  --batch N            images of one rank in one step [default: 32]
  --lr X               highest learning rate [default: 0.05]
  --momentum X         momentum of SGD [default: 0.9]
  --weight-decay X     weight decay of SGD [default: 0.0005]
  --seed N             draws weights, order of images and augmentation [default: 1]
  --stem cifar|imagenet
                       3x3 convolution of stride 1, or torchvision's [default: cifar]
  --device cpu|cuda    cuda: a GPU a rank, with the build and the LibTorch of the preset cuda, which
                       needs nvcc [default: cpu]
  --amp off|fp16|bf16  automatic mixed precision; fp16 with cuda only [default: off]
  --channels-last      channels innermost in memory
  --workers N          threads of each rank that prepare images [default: 1]
  --limit N            only the first N images; 0: all [default: 0]
  --report FILE        write the results as JSON [default: none]
  --save FILE          save the trained model as safetensors; .pt: as LibTorch's archive [default: none]
  --progress live|plain
                       one line that changes, or lines [default: live on a terminal]
  --help               this text

What follows -- goes to the program as it is, as in -- -a resnet50 --log-json /tmp/log.json; paths
in it begin with /. build/release/examples/cifar10 --help lists its options.
Data and build lie in build/ beside examples/. An epoch of CIFAR-10 takes 35 times the digits'.
horarun's and Open MPI's own variables, such as OMPI_MCA_btl_tcp_if_include, hold here, too.
EOF
}

fail() {
  echo "two_node_cifar10.sh: $*" >&2
  exit 2
}

# What the program would refuse is refused before packages are installed. A value matches its form as
# a whole, so it is neither empty nor longer than a line.
readonly whole='[0-9]{1,19}' number='[0-9]*\.?[0-9]+([eE][-+]?[0-9]+)?' path='[^[:cntrl:]]+'
readonly place='[A-Za-z0-9._][A-Za-z0-9._:-]*:[1-9][0-9]{0,3}'
readonly places="$place(,$place)*"
declare -rA forms=(
  [--hosts]=$places [--data]=$path [--report]=$path [--save]=$path [--epochs]=$whole
  [--batch]=$whole [--seed]=$whole [--workers]=$whole [--limit]=$whole [--lr]=$number
  [--momentum]=$number [--weight-decay]=$number [--stem]='cifar|imagenet' [--device]='cpu|cuda'
  [--amp]='off|fp16|bf16' [--progress]='live|plain')
declare -A given=()

# called FORM: what matches it, in words.
called() {
  case $1 in
    "$whole") echo 'a whole number' ;;
    "$number") echo 'a number of 0 or more' ;;
    "$path") echo 'a path of printable characters' ;;
    "$places") echo 'HOST:RANKS, such as node1:2, or several of these with commas between' ;;
    *) echo "${1//|/ or }" ;;
  esac
}

# take NAME VALUE: notes an option in `given`; the last value holds.
take() {
  local LC_ALL=C form=${forms[$1]:-true}
  [[ $2 =~ ^($form)$ ]] || fail "$1: ${2@Q} is not $(called "$form")"
  given[$1]=$2
}

# read_options WORD...: a value is what follows '=', or else the next word, if that is no option. What
# follows -- is noted in `passed_on`.
passed_on=()
read_options() {
  local word name
  while (($# > 0)); do
    word=$1 name=${1%%=*}
    shift
    case $word in
      -h | --help) usage; exit 0 ;;
      --no-train | --channels-last) take "$word" true; continue ;;
      --) passed_on=("$@"); return ;;
      --?*) [[ -n ${forms[$name]:-} ]] || fail "unknown option ${word@Q}; see --help" ;;
      *) fail "unknown argument ${word@Q}; see --help" ;;
    esac
    if [[ $word == *=* ]]; then
      take "$name" "${word#*=}"
    else
      [[ $# -gt 0 && $1 != --* ]] || fail "$name: a value is missing; see --help"
      take "$name" "$1"
      shift
    fi
  done
}

# Words for the program, and what only this script uses.
arguments=()
translate_options() {
  local name value
  for name in "${!given[@]}"; do
    value=${given[$name]}
    case $name in
      --hosts | --no-train) ;;
      --channels-last) arguments+=("$name") ;;
      --data) [[ -d $value ]] || fail "--data: there is no folder ${value@Q}" ;;
      --report | --save)
        [[ -d $(dirname -- "$value") ]] ||
          fail "$name: there is no folder for ${value@Q}; make it first"
        arguments+=("$name" "$(realpath -m -- "$value")") ;;
      *) arguments+=("$name" "$value") ;;
    esac
  done
}

read_options "$@"
translate_options
data=''
[[ -z ${given[--data]:-} ]] || data=$(realpath -- "${given[--data]}")
device=${given[--device]:-cpu}

# Ranks, and horarun's words for where they run.
ranks=4 where=(--ranks-per-node 2)
if [[ -n ${given[--hosts]:-} ]]; then
  where=(--hosts "${given[--hosts]}")
  IFS=, read -ra entries <<< "${given[--hosts]}"
  ranks=0
  for entry in "${entries[@]}"; do
    ranks=$((ranks + ${entry##*:}))
  done
fi

cd "$root"
source cmake/debian.sh
source cmake/ccache.sh
if [[ $device == cuda ]]; then
  hora_install_packages build cuda examples
  libtorch=$(cmake/cuda_libtorch.sh)
  preset=cuda configuration=(-DCMAKE_PREFIX_PATH="$libtorch")
else
  preset=release configuration=(-DHORA_TORCH=ON -DHORA_EXAMPLES=ON)
fi
build=build/$preset

configure() {
  echo "Configuring $build"
  cmake --preset "$preset" -DHORA_TESTS=OFF -DHORA_BENCH=OFF "$@"
}

if [[ $device == cpu ]]; then
  if ((EUID == 0)) && command -v apt-get > /dev/null &&
    [[ ! -e $build/build.ninja && -n $(hora_missing_packages torch) ]]; then
    # LibTorch takes a minute to be installed: the parts that need none are compiled meanwhile.
    hora_install_packages build
    hora_install_packages torch examples &
    installation=$!
    configure -DHORA_TORCH=OFF -DHORA_EXAMPLES=OFF
    cmake --build "$build" --parallel "$(nproc)" --target hora_launch ops/all
    wait "$installation"
  else
    hora_install_packages build torch examples
  fi
fi
[[ -d $build/examples ]] || configure "${configuration[@]}"
cmake --build "$build" --parallel "$(nproc)" --target horarun cifar10 prepare_digits

publisher=https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz
published_md5=c32a1d4ab5d03f1284b67883e8d87530
cifar10=build/data/cifar-10-batches-bin digits=build/data/digits

# Leaves CIFAR-10 in its folder, or nothing. Gives up after 5 s without a connection, and where less
# than 100 kB/s came for 10 s (the whole is 170 MB).
download_cifar10() {
  local work=build/data/download.$$
  mkdir "$work"
  echo "Downloading CIFAR-10 from $publisher"
  if curl --fail --silent --show-error --location --connect-timeout 5 \
    --speed-limit 100000 --speed-time 10 --output "$work/archive" "$publisher"; then
    if ! echo "$published_md5  $work/archive" | md5sum --check --status; then
      echo "What came does not have the published checksum $published_md5; it is not used." >&2
    elif tar -xzf "$work/archive" -C "$work" --no-same-owner cifar-10-batches-bin; then
      mv "$work/cifar-10-batches-bin" "$cifar10"
    fi
  fi
  rm -rf "$work"
  [[ -d $cifar10 ]]
}

# An image of Debian may come without the lists of packages.
download_package() {
  # apt would download as a user of its own, which cannot write here.
  local apt=(apt-get -q -o Acquire::Retries=3 -o APT::Sandbox::User=root)
  "${apt[@]}" download "$1" || { ((EUID == 0)) && "${apt[@]}" update && "${apt[@]}" download "$1"; }
}

# Takes one file out of Debian's package, and installs nothing.
prepare_digits() {
  local work=build/data/package.$$ status=0
  mkdir "$work"
  (cd "$work" && download_package python3-sklearn) &&
    dpkg-deb --fsys-tarfile "$work"/python3-sklearn_*.deb |
    tar -xO --wildcards '*/datasets/data/digits.csv.gz' | gzip -dc |
      "$build/examples/prepare_digits" --output "$digits" || status=1
  rm -rf "$work"
  return $status
}

mkdir -p build/data
if [[ -n $data ]]; then
  echo "Data: the files in $data"
elif [[ -d $cifar10 ]] || { [[ ! -d $digits ]] && download_cifar10; }; then
  data=$root/$cifar10
  echo "Data: CIFAR-10"
else
  if [[ ! -d $digits ]]; then
    echo "CIFAR-10 cannot be had from its publisher: handwritten digits instead."
    if ! command -v apt-get > /dev/null || ! command -v dpkg-deb > /dev/null; then
      fail "the digits come from a Debian package; pass CIFAR-10's binary files with --data"
    fi
    prepare_digits || fail "the digits could not be taken from Debian's package python3-sklearn;" \
      "apt-get update may help"
  fi
  data=$root/$digits
  echo "Data: 1,797 handwritten digits, NOT CIFAR-10 (to try its download again: rm -r $data)"
fi

if [[ -n ${given[--no-train]:-} ]]; then
  echo "Set up; not training (--no-train)."
  exit 0
fi

# Ranks that share a core let one another run while they wait. Only rank 0 prints.
command=("$root/$build/core/launch/horarun" -np "$ranks" "${where[@]}" --no-prefix-output
  --mca mpi_yield_when_idle 1)
((EUID != 0)) || command+=(--allow-run-as-root)
command+=("$root/$build/examples/cifar10" --data "$data" "${arguments[@]}")
command+=("${passed_on[@]}")

printf -v shown ' %q' "${command[@]}"
echo "\$$shown"
exec "${command[@]}"
