#!/usr/bin/env bash
# Every test that conformance/README.md names exists: `Suite.Name`, or `.Name` of the suite before it.
# Usage: cases_are_tests.sh TESTS_FOLDER
set -euo pipefail
readme=$1/conformance/README.md
missing=0 suite='' count=0
while read -r name; do
  [[ $name == .* ]] || { suite=${name%%.*} && suite=${suite##*/}; }
  name=${name#*.}
  [[ $name == '*' ]] && name='[A-Za-z0-9]+'
  count=$((count + 1))
  grep -rqE "^TEST(_[FP])?\($suite, *$name\)" --include='*.cpp' "$1" || {
    echo "$readme: no test $suite.$name"
    missing=$((missing + 1))
  }
done < <(grep -oE '`[A-Za-z/]*\.([A-Z][A-Za-z0-9]+|\*)`' "$readme" | tr -d '`')
echo "$count names, $missing missing"
((count > 0 && missing == 0))
