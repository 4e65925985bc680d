#!/usr/bin/env bash
# The installed horarun, found in PATH: its man page and completion lie where they are looked for,
# and it starts a project's program, which starts without it, too.
# Usage: horarun_test.sh PREFIX PROGRAM
set -euo pipefail
prefix=$1 program=$2
PATH=$prefix/bin:$PATH

fail() {
  echo "FAILED: $*"
  exit 1
}
# expect CODE COMMAND...: sets `output`, of both streams.
expect() {
  local code=0 expected=$1
  shift
  output=$(timeout --foreground --kill-after=10 60 "$@" 2>&1 < /dev/null) || code=$?
  echo "$output"
  ((code == expected)) || fail "exit code $code, expected $expected: $*"
}

[[ $(command -v horarun) == "$prefix/bin/horarun" ]] || fail "PATH leads to $(command -v horarun)"

echo "=== man page and completion are those of this horarun"
zgrep -qF '\-\-fusion\-threshold BYTES' "$prefix/share/man/man1/horarun.1.gz" || fail "no flag in the man page"
completion=$prefix/share/bash-completion/completions/horarun
# shellcheck disable=SC2016  # for the other shell to expand
expect 0 bash -euc 'source "$1" && complete -p horarun' bash "$completion"
[[ $output == *' -W '*--hostfile*' horarun' ]] || fail "completion of horarun: $output"

echo "=== a job"
expect 0 horarun -np 2 "$program"
echo "=== a job of nodes"
expect 0 horarun -np 2 --ranks-per-node 1 "$program"
echo "=== a program that is not there"
expect 69 horarun -np 2 "$program.absent"
[[ $output == *"$program.absent\" cannot be run: No such file"* ]] || fail "it does not name the program"

echo "=== one rank alone needs no launcher: quickly, and without complaint"
# Whatever ctest's environment lets root do.
start=$(date +%s%N)
expect 0 env -u OMPI_ALLOW_RUN_AS_ROOT -u OMPI_ALLOW_RUN_AS_ROOT_CONFIRM "$program"
milliseconds=$((($(date +%s%N) - start) / 1000000))
[[ -z $output ]] || fail "it complains"
# A third of a second; the bar is for a loaded machine.
((milliseconds < 10000)) || fail "it took $milliseconds ms"
echo "all as expected"
