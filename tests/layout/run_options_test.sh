#!/usr/bin/env bash
# How tests/run.sh reads its arguments, with CMake and the tests replaced by notes of the calls.
# Usage: run_options_test.sh ROOT
set -euo pipefail
root=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/run_options_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{tree/tests,tree/cmake,tree/packaging,bin}
cp "$root/tests/run.sh" "$work/tree/tests/"
cp "$root/cmake/ccache.sh" "$work/tree/cmake/"
: > "$work/tree/tests/leftovers.sh"
printf '#!/bin/bash\n:\n' > "$work/tree/cmake/arm64_sysroot.sh"
chmod +x "$work/tree/cmake/arm64_sysroot.sh"
printf '#!/bin/bash\necho /made/python\n' > "$work/tree/cmake/python_readers.sh"
chmod +x "$work/tree/cmake/python_readers.sh"
echo 'hora_install_packages() { :; }' > "$work/tree/cmake/debian.sh"
printf '#!/bin/bash\n:\n' > "$work/bin/cmake"
# shellcheck disable=SC2016  # for the fake to expand
printf '#!/bin/bash\n[[ $1 != --help ]] || exec %q --help\necho "$* by $TEST_PYTHON" >> %q\n' \
  "$(command -v ctest)" "$work/calls" > "$work/bin/ctest"
printf '#!/bin/bash\necho the packages >> %q\n' "$work/calls" > "$work/tree/packaging/test.sh"
chmod +x "$work"/bin/* "$work/tree/packaging/test.sh"

unset TEST_PYTHON
fail() {
  cat "$work/output" "$work/calls"
  echo "FAILED: $*"
  exit 1
}
run() {
  : > "$work/calls"
  code=0
  PATH=$work/bin:$PATH bash "$work/tree/tests/run.sh" "$@" > "$work/output" 2>&1 || code=$?
}
refuses() {
  local what=$1
  shift
  run "$@"
  ((code == 2)) || fail "exit code $code for $*"
  grep -qF -- "$what" "$work/output" || fail "it does not say '$what'"
  [[ ! -s $work/calls ]] || fail "tests ran for $*"
}
calls() {
  local what=$1
  shift
  run "$@"
  ((code == 0)) || fail "exit code $code for $*"
  grep -qF -- "$what" "$work/calls" || fail "ctest was not called with '$what'"
}

refuses "unknown option '--nighly'" --nighly
refuses "unknown option '--sanitized=yes'" -R x --sanitized=yes
refuses "unknown option '-Z'" -Z
refuses "'allreduce' belongs to no option" allreduce
refuses "'allreduce' belongs to no option" --nightly allreduce
refuses '--sanitize beside --nightly' --nightly --sanitize
calls '-LE ^nightly$ -R allreduce -j 1 by /made/python' -R allreduce -j 1
TEST_PYTHON=own calls '-LE ^nightly$ by own'
calls '-LE ^nightly$ -j4 --rerun-failed' -j4 --rerun-failed
calls '-L ^nightly$ -R allreduce' -R allreduce --nightly
calls 'the packages' --nightly
calls '-L ^threads$ -V' --sanitize -V
calls '--test-dir build/arm64 --output-on-failure --no-tests=error' --arm64
calls '-L ^(values|threads)$ -R local' --arm64 -R local
refuses '--arm64 beside --cuda' --cuda --arm64
refuses '--mpi needs mpich or a folder' --mpi
refuses '--mpi needs mpich or a folder' --mpi -R x
refuses 'there is no /no/such/bin/mpicxx' --mpi /no/such
refuses '--mpi beside --sanitize' --mpi mpich --sanitize
calls '--test-dir build/release-mpich' --mpi mpich -R x
echo "all as expected"
