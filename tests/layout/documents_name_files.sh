#!/usr/bin/env bash
# Every file and folder that a Markdown file below ROOT names exists: the target of a link; in `code`
# words that end as sources do; and there and in ```blocks``` paths that begin with a folder at the top
# of the tree, beside the document, or in it. A name may be the end of a path, without its suffix
# (`nccl/launches`), too. Left out are addresses, absolute paths, build/, and names with a placeholder:
# a part in capitals, or any of < > * { } $.
# Usage: documents_name_files.sh ROOT
set -euo pipefail
cd "$1"
paths=$(mktemp)
trap 'rm -f "$paths"' EXIT
find . -mindepth 1 -type d \( -path ./build -o -name '.*' ! -path ./.ci \) -prune -o \
  -printf '%y %P\n' > "$paths"
mapfile -t documents < <(sed -n 's/^f \(.*\.md\)$/\1/p' "$paths")
((${#documents[@]} > 0)) || { echo "no documents in $1"; exit 1; }

awk '
  # Without "x/..", "." and a "/" at the end.
  function normal(path) {
    gsub(/\/\.\//, "/", path)
    sub(/^(\.\/)+/, "", path)
    while (sub(/[^\/]+\/\.\.\//, "", path)) {}
    sub(/\/[^\/]+\/\.\.$/, "", path)
    sub(/\/+$/, "", path)
    return path
  }
  function complain(name) {
    print FILENAME ":" FNR ": there is no " name
    ++missing
  }
  function check_link(target) {
    sub(/#.*/, "", target)
    if (target == "" || target ~ /^[a-z]+:/) return
    ++names
    if (!(normal(folder target) in all)) complain(target)
  }
  function check_word(word,    first) {
    gsub(/^[("\047]+|[)"\047.:;]+$/, "", word)
    if (word ~ /[<>*{}$:@%=~]|^[-\/]|^\.[a-z]+$|(^|\/)[A-Z][A-Z_]*(\.[a-z]+)?(\/|$)/) return
    word = normal(word)
    first = word
    sub(/\/.*/, "", first)
    if (first == "build") return
    if ((in_block || word !~ /\.(h|cpp|cu|cuh|fbs|cmake|sh|py)$/) &&
        !(word ~ /\// && (first in folders || normal(folder first) in folders ||
                          normal(folder "../" first) in folders))) return
    ++names
    if (!(word in tails) && !(normal(folder word) in all)) complain(word)
  }
  function check_code(code,    words, count, i) {
    count = split(code, words, /[ \t,|&]+/)
    for (i = 1; i <= count; ++i) check_word(words[i])
  }

  FILENAME == ARGV[1] {
    path = substr($0, 3)
    all[path]
    if (/^d/) folders[path]
    for (;;) {
      tails[path]
      bare = path
      if (sub(/\.[a-z]+$/, "", bare)) tails[bare]
      if (!sub(/^[^\/]*\//, "", path)) break
    }
    next
  }
  FNR == 1 {
    folder = FILENAME
    if (!sub(/[^\/]*$/, "", folder)) folder = ""
    in_block = 0
  }
  /^ *```/ { in_block = !in_block; next }
  in_block { sub(/(^| )#.*/, ""); check_code($0); next }
  {
    rest = $0
    while (match(rest, /\]\([^) ]+/)) {
      check_link(substr(rest, RSTART + 2, RLENGTH - 2))
      rest = substr(rest, RSTART + RLENGTH)
    }
    rest = $0
    while (match(rest, /`[^`]+`/)) {
      check_code(substr(rest, RSTART + 1, RLENGTH - 2))
      rest = substr(rest, RSTART + RLENGTH)
    }
  }
  END {
    print names + 0 " names, " missing + 0 " missing"
    exit !(names > 0 && missing == 0)
  }' "$paths" "${documents[@]}"
