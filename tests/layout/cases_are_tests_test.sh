#!/usr/bin/env bash
# cases_are_tests.sh must see a test that is not there, in either way of writing and in any of several
# files, and an empty table.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo 'TEST_F(Join, Agrees) {' > "$work/join.cpp"
echo '| case | `Join.Agrees` |' > "$work/good.md"

check() {
  echo "$1" > "$work/README.md"
  bash "$here/cases_are_tests.sh" "$work" "$work/README.md" "$work/good.md"
}
must_fail() { if check "$1"; then echo "did not fail: $1"; exit 1; fi; }

check '| case | `Join.Agrees`, `All/Join.*` |'
must_fail '| case | `Join.Disagrees` |'
must_fail '| case | `Join.Agrees`, `.Disagrees` |'
must_fail '| case | `Leave.*` |'
must_fail '| case | none |'
