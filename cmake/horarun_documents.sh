#!/usr/bin/env bash
# Writes horarun's man page (section 1) and its bash completion from its --help.
# Usage: horarun_documents.sh VERSION MAN_PAGE COMPLETION COMMAND...   (what runs horarun)
set -euo pipefail
help=$("${@:4}" --help)
{
  printf '%s\n' ".TH HORARUN 1 \"\" \"hora $1\" \"User Commands\"" '.SH NAME' \
    'horarun \- start, watch and end data\-parallel training jobs' '.SH DESCRIPTION' .nf
  sed 's/\\/\\e/g; s/-/\\-/g' <<< "$help"
  printf '%s\n' .fi '.SH EXIT STATUS' \
    "That of the rank that failed first; 128 and the signal's number where a signal ended it;" \
    "2 for wrong flags; 0 where all ranks have ended well."
} | gzip -9n > "$2"
# A flag's line begins with two spaces and a dash; other launchers' flags stand in deeper lines.
flags=$(grep -E '^  -' <<< "$help" | grep -oE '(^|[ ,])--?[A-Za-z][a-z-]*' | tr -d ' ,' | tr '\n' ' ')
printf "complete -o default -W '%s' horarun\n" "${flags% }" > "$3"
