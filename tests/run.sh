#!/usr/bin/env bash
# Builds hora and runs its tests. On a fresh Debian 12, as root or with sudo, it installs what is
# missing first; elsewhere it names what is missing and stops.
#
# Usage: tests/run.sh [--sanitize | --cuda | --arm64 | --nightly] [--mpi mpich | --mpi PREFIX]
#                     [option of ctest...]
#   (nothing)    preset release: everything but the label nightly
#   --sanitize   presets asan (value and thread tiers, MPI tests on nodes of 2 ranks and of 1) and tsan
#                (thread tier), both without LibTorch
#   --cuda       preset cuda: the GPU data path on a fake GPU (label fake_gpu); what uses LibTorch
#                (label torch), against its CUDA build but on the CPU, with 2 ranks, without
#                trainings of half a minute and more (label long); and the installed package. Needs
#                nvcc, not a GPU. cmake/cuda_libtorch.sh downloads that LibTorch, once (1.5 GB)
#   --arm64      preset arm64: value and thread tiers, cross-compiled and run in QEMU's user mode,
#                without LibTorch. Needs Debian: cmake/arm64_sysroot.sh downloads the libraries, once
#   --nightly    preset release: the label nightly, which takes minutes and 8 GiB of memory; preset
#                fuzz: each of tests/fuzz for a minute under libFuzzer; without options of ctest
#                packaging/test.sh, too
#   --mpi        with another MPI than Debian's Open MPI, in a build folder of its own: mpich is
#                Debian's, PREFIX an installation of any (bin/mpicxx, bin/mpirun). Without the tests
#                that emulate two hosts, which are written for Open MPI 4's mpirun
#   option       goes to ctest: -R allreduce, -L values, -j 1, --rerun-failed
# TEST_SEED=<number> repeats a run's random choices; CI=1 makes warnings errors; TEST_PYTHON=<python>
# is one with PyPI's safetensors and tensorboard, else preset release takes cmake/python_readers.sh's.
# Exit code: 0 only where tests ran, none failed and nothing was left behind.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

stop() {
  echo "tests/run.sh: $*; see --help" >&2
  exit 2
}

kind='' mpi=''
ctest_options=()
while (($# > 0)); do
  word=$1
  shift
  case $word in
    --mpi)
      [[ -n ${1:-} && $1 != -* ]] || stop "--mpi needs mpich or a folder"
      mpi=$1
      shift ;;
    --sanitize | --cuda | --arm64 | --nightly)
      [[ -z $kind ]] || stop "$word beside --$kind"
      kind=${word#--} ;;
    -h | --help) sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$0"; exit 0 ;;
    *) ctest_options+=("$word") ;;
  esac
done
kind=${kind:-release}
[[ -z $mpi || $kind == release || $kind == nightly ]] || stop "--mpi beside --$kind"
[[ -z $mpi || $mpi == mpich || -x $mpi/bin/mpicxx ]] ||
  stop "--mpi ${mpi@Q}: there is no $mpi/bin/mpicxx"

source cmake/debian.sh
source cmake/ccache.sh
case $kind in
  release | nightly) hora_install_packages build torch examples bench test ;;
  sanitize) hora_install_packages build test ;;
  cuda) hora_install_packages build cuda examples bench test ;;
  arm64) hora_install_packages build test arm64 ;;
esac
[[ $mpi != mpich ]] || hora_install_packages mpich

# ctest ignores options that it does not know, and would run everything.
check_ctest_options() {
  local known word before=''
  known=$(ctest --help | grep -oE -- '(^|[ ,])--?[A-Za-z][A-Za-z-]*' | tr -d ' ,')
  for word; do
    if [[ $word == --* ]]; then
      grep -qxF -- "${word%%=*}" <<< "$known" || stop "unknown option ${word@Q}"
    elif [[ $word == -* ]]; then
      grep -qxF -- "${word:0:2}" <<< "$known" || stop "unknown option ${word@Q}"
    elif [[ $before != -* ]]; then
      stop "${word@Q} belongs to no option (-R ${word@Q} runs the tests of such a name)"
    fi
    before=$word
  done
}
check_ctest_options "${ctest_options[@]}"

cores=$(nproc)
# Tests wait about as long as they compute: more of them than cores fit beside one another.
level=$((cores + 4))
failed=() skipped=()
temporary='' segments=''
trap 'rm -rf "$temporary" "$segments"' EXIT

# Further arguments of CMake's configuration, what is put after the preset's name for its build
# folder, and what is built.
configuration=() suffix='' targets=(all)
case $mpi in
  '') ;;
  mpich)
    configuration=(-DMPI_EXECUTABLE_SUFFIX=.mpich)
    suffix=-mpich ;;
  *)
    configuration=(-DMPI_HOME="$(realpath "$mpi")")
    suffix=-$(realpath "$mpi" | tr -c 'A-Za-z0-9.\n' -) ;;
esac
# run_preset PRESET OPTION...: builds and tests; notes in `failed` and `skipped`.
run_preset() {
  local preset=$1 folder=build/$1$suffix before left name state why status=0
  shift
  echo "=== $preset: configure and build"
  cmake --preset "$preset" -B "$folder" -DHORA_WERROR="${CI:+ON}" "${configuration[@]}" \
    > "$folder.configure.log" 2>&1 ||
    { cat "$folder.configure.log"; failed+=("$preset: configure"); return; }
  cmake --build "$folder" --parallel "$cores" --target "${targets[@]}" ||
    { failed+=("$preset: build"); return; }

  echo "=== $preset: test"
  temporary=$(mktemp -d /tmp/hora-tests.XXXXXX)
  # Open MPI 4's mpirun fails where another makes this folder at that moment.
  (umask 077 && mkdir -p "$temporary/ompi.${HOSTNAME%%.*}.$EUID/used")
  # Open MPI's shared-memory files; it leaves some of those of jobs that tests abort, and version 5
  # that of a rank without a launcher.
  segments=$(mktemp -d /dev/shm/hora-tests.XXXXXX)
  before=$(bash tests/leftovers.sh "$folder" "$temporary")
  TMPDIR=$temporary OMPI_MCA_btl_vader_backing_directory=$segments \
    OMPI_MCA_btl_sm_backing_directory=$segments \
    ctest --test-dir "$folder" --output-on-failure --no-tests=error --parallel "$level" "$@" |
    tee "$folder.ctest.log" || status=$?
  ((status == 0)) || failed+=("$preset: ctest, exit code $status")

  # The last line of a skipped test says why.
  while read -r _ _ name state; do
    why=$(awk -v name="$name" '$2 == "Test:" { is_it = $3 == name }
      is_it && /^<end of output>/ { print last; exit } { last = $0 }' "$folder/Testing/Temporary/LastTest.log")
    skipped+=("$preset: $name: ${why:-$state}")
  done < <(grep -E '\((Skipped|Disabled)\)$' "$folder.ctest.log")

  # mpirun's daemons need a moment to go.
  for _ in {1..10}; do
    left=$(bash tests/leftovers.sh "$folder" "$temporary" |
      grep -vxF -e "$before" -e '' || true)
    [[ -n $left ]] || break
    sleep 1
  done
  if [[ -n $left ]]; then
    echo "Left behind by the tests:"
    echo "$left"
    failed+=("$preset: something was left behind")
  fi
  rm -rf "$temporary" "$segments"
}

mkdir -p build
case $kind in
  release)
    # Where these cannot be had, as without network, the tests that need them are not run.
    if [[ -z ${TEST_PYTHON:-} ]] && (hora_install_packages python >&2) &&
      python=$(cmake/python_readers.sh); then
      export TEST_PYTHON=$python
    fi
    run_preset release -LE '^nightly$' "${ctest_options[@]}" ;;
  nightly)
    run_preset release -L '^nightly$' "${ctest_options[@]}"
    run_preset fuzz -L '^fuzz$' "${ctest_options[@]}"
    ((${#ctest_options[@]} > 0)) || packaging/test.sh || failed+=("packaging/test.sh")
    ;;
  sanitize)
    run_preset asan -L '^(values|threads|mpi)$' -LE '^nightly$' \
      -E '^harness_mpi$|_np[0-9]$|_np(4_rpn2|5_rpn2|3_rpn1)$|_pauses_' "${ctest_options[@]}"
    targets=(tests_threads)
    run_preset tsan -L '^threads$' "${ctest_options[@]}"
    ;;
  cuda)
    prefix=$(cmake/cuda_libtorch.sh)
    configuration=(-DCMAKE_PREFIX_PATH="$prefix")
    # Without the programs of tests that the preset release runs.
    targets=(horarun_documents {core,ops,frameworks/torch,bench,examples}/all
      tests/{support,ops/cuda,conformance,frameworks,examples,bench,gpu,package}/all)
    run_preset cuda -L '^(fake_gpu|torch|package)$' -LE '^(long|nightly)$' \
      -E '^(conformance_)?torch_.*_np(1|[3-9])(_|$)' "${ctest_options[@]}"
    ;;
  arm64)
    cmake/arm64_sysroot.sh
    run_preset arm64 -L '^(values|threads)$' "${ctest_options[@]}"
    ;;
esac

((${#skipped[@]} == 0)) || printf 'NOT RUN: %s\n' "${skipped[@]}"
if ((${#failed[@]} > 0)); then
  printf 'FAILED: %s\n' "${failed[@]}"
  exit 1
fi
echo "All tests that ran passed; not run: ${#skipped[@]}."
