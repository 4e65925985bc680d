#!/usr/bin/env bash
# The recipe for hosts that share no file system (examples/recipes/ssh.sh) on two emulated hosts, each
# with a folder of its own where the recipe puts program and data.
# Usage: ssh_recipe.sh SSH_RECIPE HORARUN AVERAGE (AVERAGE: the example)
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=horarun_hosts.sh
source "$(dirname "$(realpath "$0")")/horarun_hosts.sh"
recipe=$1 horarun=$2 average=$3
begin_hosts "$@"

# In ssh's place: on host-a, where the recipe runs, this host; else the other.
write_ssh
mkdir -p "$work/bin" "$work/own" "$work/data/a folder"
cat > "$work/bin/ssh" << SSH
#!/bin/bash
words=("\$@")
while [[ \$1 == -* ]]; do
  [[ \$1 != -o ]] || shift
  shift
done
[[ \$1 == host-a ]] || exec "$work/ssh" "\${words[@]}"
shift
exec /bin/sh -c "\$*"
SSH
# What follows the program's name is what the recipe was given.
cat > "$work/show" << 'SHOW'
#!/bin/bash
echo "$(hostname): $(cat "$2/a folder/file") $3"
SHOW
chmod +x "$work/bin/ssh" "$work/show"
echo first > "$work/data/a folder/file"
nsenter --mount --root --target "$host_b_pid" mount -t tmpfs tmpfs "$work/own"

run_recipe() {
  (exec_on host-a PATH="$work/bin:$PATH" FOLDER="$work/own" HORARUN="$horarun" \
    timeout --kill-after=10 60 bash "$recipe" host-a:1,host-b:1 "$@") > "$work/output" 2>&1 ||
    fail "exit code $?: $(cat "$work/output")"
}
says() { grep -qF -- "$1" "$work/output" || fail "it does not say '$1': $(cat "$work/output")"; }
copied() {
  local found
  found=$(grep -c '^copying ' "$work/output" || true)
  [[ $found == "$1" ]] || fail "$found folders were copied, expected $1: $(cat "$work/output")"
}

run_recipe - "$average"
copied 2
says 'the average of 2 ranks is 0.5, 1.5, ..., 999.5'
says '== what horarun is going to execute'
nsenter --mount --root --target "$host_b_pid" test -x "$work/own/bin/horarun" || fail "host-b has no copy"

run_recipe - "$average"
copied 0

run_recipe "$work/data" "$work/show" word
copied 4
says 'host-a: first word'
says 'host-b: first word'
echo again > "$work/data/a folder/file" # of the same size
echo more > "$work/data/another"
run_recipe "$work/data" "$work/show" word
copied 2
says 'host-b: again word'

! (exec_on host-a PATH="$work/bin:$PATH" FOLDER="$work/own" HORARUN="$horarun" \
  bash "$recipe" host-a:1,host-c:1 - "$average") > "$work/output" 2>&1 || fail "host-c is taken"
says 'ssh.sh: host-c: ssh does not log in without a question'
echo "all as expected"
