#!/usr/bin/env bash
# files_are_listed.sh must see a file that is not listed, and an empty folder.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/tests/a" "$work/tests/b" "$work/empty"
touch "$work/tests/a/one_test.cpp" "$work/tests/b/two_test.cpp"
echo "$work/tests/a/one_test.cpp" > "$work/listed.txt"

check() { bash "$here/files_are_listed.sh" "$@"; }
must_fail() { if check "$@"; then echo "did not fail: $*"; exit 1; fi; }

must_fail "$work/tests" "$work/listed.txt"
must_fail "$work/tests" "$work/listed.txt" a
must_fail "$work/empty" "$work/listed.txt"
check "$work/tests" "$work/listed.txt" b
