#!/usr/bin/env bash
# file_lengths.sh must see a source that is too long, of any kind, and an empty folder.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tree/core" "$work/tree/build" "$work/empty"

check() { bash "$here/file_lengths.sh" "$@"; }
must_fail() { if check "$@"; then echo "did not fail: $*"; exit 1; fi; }

seq 400 > "$work/tree/core/a.cpp"
seq 500 | tee "$work/tree/core/README.md" > "$work/tree/build/made.cpp"
check "$work/tree"
for name in a.cpp a.h a.cu a.sh a.cmake CMakeLists.txt; do
  seq 401 > "$work/tree/core/$name"
  must_fail "$work/tree"
  seq 400 > "$work/tree/core/$name"
done
must_fail "$work/empty"
