#!/usr/bin/env bash
# Clang's thread-safety analysis (core/base/sync.h) finds nothing in core and ops, as this build
# compiles them. Left out is core/launch: each of its processes has one thread.
# Usage: thread_safety.sh SOURCE_FOLDER BUILD_FOLDER (with CMake's compile_commands.json)
set -uo pipefail
source_folder=$(realpath "$1") build_folder=$(realpath "$2")
commands=$build_folder/compile_commands.json
clang=$(command -v clang++) || { echo "no clang++ here"; exit 77; }
[[ -r $commands ]] || { echo "$commands is missing"; exit 1; }

threads=$(grep -rnE '^#include <(thread|mutex|condition_variable|future)>' \
  "$source_folder/core/launch" 2> /dev/null) &&
  { echo "core/launch has one thread a process; it cannot use:"; echo "$threads"; exit 1; }

# Folder, source and command of each entry, with tabs between: of the libraries, also of sources that
# are compiled together, without the kernels, which share nothing.
entries=$(sed -nE 's/^ *"(directory|command|file)": "(.*)",?$/\1\t\2/p' "$commands" |
  awk -F '\t' '{ value[$1] = $2 }
               $1 == "file" { print value["directory"] "\t" value["file"] "\t" value["command"] }' |
  awk -F '\t' -v sources="$source_folder/" -v together="$build_folder/" \
    '{ root = index($2, together) == 1 ? together : sources
       path = index($2, root) == 1 ? substr($2, length(root) + 1) : "" }
     path ~ /^(core|ops)\/.*\.cpp$/ && path !~ /^(core\/launch|ops\/local)\// && $3 !~ / -o tests\//' | sort -u)
[[ -n $entries ]] || { echo "no sources in $commands"; exit 1; }

# Of the command, the options that say what the source means; the others may be GCC's alone.
check() {
  local folder source command words options=() i
  IFS=$'\t' read -r folder source command <<< "$1"
  # JSON's escapes go first; what remains is a shell's line, quotes and all.
  set -f
  eval "words=($(sed 's/\\\(.\)/\1/g' <<< "$command"))"
  for ((i = 0; i < ${#words[@]}; ++i)); do
    case ${words[i]} in
      -isystem) options+=("${words[i]}" "${words[++i]}") ;;
      -I* | -D* | -std=*) options+=("${words[i]}") ;;
    esac
  done
  cd "$folder" && "$clang" -fsyntax-only -Wno-everything -Wthread-safety -Werror \
    "${options[@]}" "$source"
}
export -f check
export clang
tr '\n' '\0' <<< "$entries" | xargs -0 -P 2 -I '{}' bash -c '[[ -z $1 ]] || check "$1"' _ '{}' ||
  { echo "see core/base/sync.h"; exit 1; }
echo "$(wc -l <<< "$entries") sources"
