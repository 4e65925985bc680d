#!/usr/bin/env bash
# size_budget.sh must see a folder above its row, a source in no row, and a row without sources.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/core/launch" "$work/tests/layout" "$work/build" "$work/other"

check() { bash "$here/size_budget.sh" "$work"; }
must_fail() { if check; then echo "did not fail: $*"; exit 1; fi; }

printf '# rows\ncore 8\ncore/launch 4\n' > "$work/tests/layout/size_budget.txt"
seq 5 > "$work/core/a.cpp"
seq 3 > "$work/core/a.h"
seq 4 > "$work/core/launch/b.cu"
seq 500 | tee "$work/core/README.md" > "$work/build/made.cpp"
check
seq 4 > "$work/core/a.h"
must_fail "core has a line too many"
seq 3 > "$work/core/a.h"
seq 5 > "$work/core/launch/b.cu"
must_fail "core/launch has a line too many"
seq 4 > "$work/core/launch/b.cu"
seq 1 > "$work/other/c.cpp"
must_fail "other is in no row"
rm "$work/other/c.cpp" "$work/core/launch/b.cu"
must_fail "core/launch has no sources"
