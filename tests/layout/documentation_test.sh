#!/usr/bin/env bash
# The target docs fails where a comment has what Doxygen does not understand.
# Usage: documentation_test.sh DOXYFILE
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# doxygen_of COMMENT: runs it on a header with this comment.
doxygen_of() {
  printf '/// %s\nstruct Header {};\n' "$1" > "$folder/header.h"
  { cat "$doxyfile"; printf '%s = %s\n' INPUT "$folder/header.h" OUTPUT_DIRECTORY "$folder"; } |
    doxygen - > "$folder/output" 2>&1
}
doxyfile=$1

doxygen_of 'Calls.' || { cat "$folder/output"; echo "a right comment fails"; exit 1; }
! doxygen_of 'Calls \wrongcommand.' || { echo "an unknown command passes"; exit 1; }
grep -q "unknown command" "$folder/output"
