#!/usr/bin/env bash
# Every test that a document names exists: `Suite.Name`, or `.Name` of the suite before it.
# Usage: cases_are_tests.sh TESTS_FOLDER README...
set -euo pipefail
tests=$1
shift

# check README: whether it names tests, and all are there.
check() {
  local missing=0 suite='' count=0 name
  while read -r name; do
    [[ $name == .* ]] || { suite=${name%%.*} && suite=${suite##*/}; }
    name=${name#*.}
    [[ $name == '*' ]] && name='[A-Za-z0-9]+'
    count=$((count + 1))
    grep -rqE "^TEST(_[FP])?\($suite, *$name\)" --include='*.cpp' "$tests" || {
      echo "$1: no test $suite.$name"
      missing=$((missing + 1))
    }
  done < <(grep -oE '`[A-Za-z/]*\.([A-Z][A-Za-z0-9]+|\*)`' "$1" | tr -d '`')
  echo "$1: $count names, $missing missing"
  ((count > 0 && missing == 0))
}

status=0
for readme; do
  check "$readme" || status=1
done
exit "$status"
