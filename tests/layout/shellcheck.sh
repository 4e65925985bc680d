#!/usr/bin/env bash
# Fails where shellcheck finds an error or a warning in a script below FOLDER: a file whose name ends
# in .sh, or whose first line names a shell. Build folders and hidden folders other than .ci are left
# out. Without shellcheck the test is skipped; in CI (CI is set) that is a failure.
# Usage: shellcheck.sh FOLDER
set -uo pipefail
cd "$1" || exit 1
if ! command -v shellcheck > /dev/null; then
  echo "no shellcheck here: install the package shellcheck"
  [[ -z ${CI:-} ]] || exit 1
  exit 77
fi

mapfile -d '' -t scripts < <(
  find . -mindepth 1 -type d \( -path ./build -o -name '.*' ! -path ./.ci \) -prune -o \
    -type f -exec awk 'FNR == 1 && (FILENAME ~ /\.sh$/ || /^#!.*[\/ ](ba|da)?sh( |$)/) {
                         printf "%s%c", FILENAME, 0 }
                       { nextfile }' {} +)
((${#scripts[@]} > 0)) || { echo "no scripts in $1"; exit 1; }

# --external-sources: what a script sources is looked into, where it is one of these.
shellcheck --severity=warning --external-sources --format=gcc "${scripts[@]}" || exit 1
echo "${#scripts[@]} scripts"
