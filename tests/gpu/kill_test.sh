#!/usr/bin/env bash
# One of two ranks is killed inside a collective: the other must end within 10 s.
# Usage: kill_test.sh mpirun|rank KILL_PEER MPIRUN...
#   mpirun  mpirun ends the job, and no process is left
#   rank    mpirun lets the other rank go on (Open MPI 5), which gets an error from hora
set -euo pipefail
way=$1 program=$2
shift 2
readonly limit=10 start=20 stuck=60  # seconds; starting takes some on a cold machine

output=$(mktemp)
trap 'rm -f "$output"' EXIT
options=()
[[ $way == mpirun ]] || options=(--with-ft ulfm)
status=0 begin=$(date +%s)
timeout --kill-after=5 "$stuck" "$@" "${options[@]}" -np 2 "$(dirname "$(realpath "$0")")/host_of_rank.sh" \
  "$program" > "$output" 2>&1 || status=$?
seconds=$(($(date +%s) - begin))
cat "$output"
echo "mpirun: exit code $status after $seconds s"
if grep -q '^no GPU here' "$output"; then exit 77; fi
grep -q '^rank 1: killed' "$output" || { echo "FAILED: rank 1 was not killed"; exit 1; }
# mpirun's own exit code may be that of a rank killed, 137.
((seconds < stuck)) || { echo "FAILED: stuck"; exit 1; }

# Ended, whether or not anybody has waited for it.
is_gone() { ! grep -qsE '^State:[[:space:]]+[^ZX[:space:]]' "/proc/$1/status"; }

# mpirun does not wait for a rank that it has killed, and the driver clears up after a GPU's process.
cleared=$((SECONDS + limit))
for process in $(sed -n 's/^rank [0-9]*: process //p' "$output"); do
  until is_gone "$process"; do
    ((SECONDS < cleared)) || { echo "FAILED: process $process is left"; exit 1; }
    sleep 0.1
  done
done
if [[ $way == rank ]]; then
  waited=$(sed -n 's/^rank 0: free after \([0-9]*\) ms:.*/\1/p' "$output")
  [[ -n $waited ]] || { echo "FAILED: rank 0 got no error"; exit 1; }
  ((waited < limit * 1000)) || { echo "FAILED: rank 0 waited for $waited ms"; exit 1; }
else
  ((seconds < start + limit)) || { echo "FAILED: $seconds s"; exit 1; }
fi
