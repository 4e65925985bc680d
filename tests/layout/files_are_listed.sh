#!/usr/bin/env bash
# Fails where a *_test.cpp below TESTS is not among the lines of LISTED, the sources that the build
# was given. Files in LEFT_OUT folders belong to components this build leaves out.
# Usage: files_are_listed.sh TESTS LISTED [LEFT_OUT...]
set -euo pipefail
tests=$(realpath "$1") listed=$2
shift 2

found=0 missing=0
while IFS= read -r -d '' file; do
  found=$((found + 1))
  for folder in "$@"; do
    [[ $file == "$tests/$folder/"* ]] && continue 2
  done
  if ! grep -qxF -- "$file" "$listed"; then
    echo "No build lists ${file#"$tests/"}: add it to a hora_add_test or hora_add_mpi_test in a" \
      "CMakeLists.txt"
    missing=$((missing + 1))
  fi
done < <(find "$tests" -name '*_test.cpp' -print0)

echo "$found test files, $missing not listed; folders left out of this build: ${*:-none}"
((found > 0 && missing == 0))
