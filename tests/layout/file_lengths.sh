#!/usr/bin/env bash
# Fails where a source below FOLDER, of C++, CUDA, the messages, the shell or CMake, has more than 400
# lines: a file answers one question whole, and is cut by responsibility where it has grown beyond
# that. Build folders and hidden folders other than .ci are left out.
# Usage: file_lengths.sh FOLDER
set -euo pipefail
cd "$1"
most=400

count=0 long=0
while IFS= read -r -d '' file; do
  count=$((count + 1))
  lines=$(wc -l < "$file")
  ((lines <= most)) || {
    echo "${file#./} has $lines lines, more than $most: cut it by responsibility"
    long=$((long + 1))
  }
done < <(find . -mindepth 1 -type d \( -path ./build -o -name '.*' ! -path ./.ci \) -prune -o -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' -o -name '*.fbs' -o -name '*.sh' \
  -o -name '*.cmake' -o -name CMakeLists.txt \) -print0)

echo "$count sources, $long too long"
((count > 0 && long == 0))
