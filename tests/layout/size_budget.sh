#!/usr/bin/env bash
# Fails where a folder has more lines of C++ and CUDA than its row in FOLDER/tests/layout/size_budget.txt
# allows, or a source belongs to no row. A source counts for the longest row that it lies in.
# Usage: size_budget.sh FOLDER
set -euo pipefail
cd "$1"

find . -mindepth 1 -type d \( -path ./build -o -name '.*' \) -prune -o -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 |
  xargs -0 -r awk 'END { for (file in lines) print lines[file], substr(file, 3) } { lines[FILENAME]++ }' |
  awk '
    NR == FNR && ($0 ~ /^#/ || NF == 0) { next }
    NR == FNR { most[$1] = $2; has[$1] = 0; next }
    {
      row = ""
      for (folder in most)
        if (index($2, folder "/") == 1 && length(folder) > length(row)) row = folder
      if (row == "") { print $2 " lies in no row of size_budget.txt"; bad = 1 }
      has[row] += $1
    }
    END {
      for (folder in most) {
        printf "%-22s %6d lines, at most %d\n", folder, has[folder], most[folder]
        if (has[folder] > most[folder]) {
          print folder " has " has[folder] - most[folder] " lines too many: cut, or raise its row and say why"
          bad = 1
        }
        if (has[folder] == 0) { print folder " has no sources"; bad = 1 }
      }
      exit bad
    }' tests/layout/size_budget.txt -
