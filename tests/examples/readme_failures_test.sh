#!/usr/bin/env bash
# The failures that docs/failures.md shows are what horarun really prints, as a whole: its commands
# are run, and their output is compared, but for spaces, times, process numbers, this host's cores, and
# the names of this host, of the folder and of horarun's. The one in README.md is among them.
# Usage: readme_failures_test.sh SOURCES HORARUN TRAIN
# At the end it prints what was found, as it can stand in docs/failures.md.
set -euo pipefail
document=$1/docs/failures.md readme=$1/README.md horarun=$2 train=$3
work=$(mktemp -d "${TMPDIR:-/tmp}/readme_failures_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin" "$work/me"
ln -s "$horarun" "$work/bin/horarun"
ln -s "$train" "$work/me/train"
# What OpenSSH says of a host that is not there; ssh need not be installed.
printf '#!/bin/sh\necho "ssh: Could not resolve hostname nodec: Name or service not known" >&2\nexit 255\n' \
  > "$work/bin/ssh"
chmod +x "$work/bin/ssh"
PATH=$work/bin:$PATH
cd "$work/me"
# The fault of ./train in each command, and the exit status.
readonly faults=(killed throws skips '' '') statuses=(137 134 134 69 69)

# The first block's lines, without the fences.
first_block() { awk '/^```$/ { ++fences; next } fences == 1'; }
first_block < "$document" > "$work/shown"
[[ $(< "$work/shown") == *"$(sed -n '/^## When something goes wrong/,/^## /p' "$readme" | first_block)"* ]] ||
  { echo "README.md shows a failure that docs/failures.md does not"; exit 1; }
mapfile -t commands < <(sed -n 's/^\$ //p' "$work/shown")
((${#commands[@]} == ${#faults[@]})) || { echo "${#commands[@]} commands are shown"; exit 1; }

# comparable: standard input without what differs from run to run, in one line.
comparable() {
  sed '/^horarun: cores: /d' | tr -s ' \n' ' ' | sed -E -e 's/\[[0-9:.]{12}\]/[TIME]/g' -e 's/pid [0-9]+/pid N/g' \
    -e 's/[0-9]+(\.[0-9]+)? (s after its start|s ago)/T \2/g'
}
shown_of() { awk -v wanted="$1" '/^\$ / { ++n; next } n == wanted' "$work/shown"; }

differ=0
: > "$work/real"
for i in "${!commands[@]}"; do
  command=${commands[i]} code=0
  # The words before the comment, as a shell reads them.
  read -ra words <<< "${command%%#*}"
  [[ ${words[0]} == horarun ]] || { echo "not a command of horarun: $command"; exit 1; }
  TRAIN_FAULT=${faults[i]} env -u OMP_NUM_THREADS timeout --foreground --kill-after=10 60 "${words[@]}" \
    2>&1 < /dev/null |
    sed "s|$(realpath "$horarun")|/usr/local/bin/horarun|g; s|$PWD|/home/me|g" > "$work/output" ||
    code=$?
  { echo "\$ $command"; fold -s -w 110 "$work/output" | sed 's/ *$//'; echo; } >> "$work/real"
  ((code == statuses[i])) || { echo "exit status $code, expected ${statuses[i]}: $command"; differ=1; }
  if ! diff <(shown_of $((i + 1)) | comparable) \
    <(comparable < "$work/output") > "$work/difference"; then
    echo "$document shows another output of: $command"
    cat "$work/difference"
    differ=1
  fi
done
cat "$work/real"
exit "$differ"
