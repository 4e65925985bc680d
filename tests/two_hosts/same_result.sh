#!/usr/bin/env bash
# Runs PROGRAM on two virtual nodes of this host and on two emulated hosts, 2 ranks each, and
# compares their lines that begin with "result ".
# Usage: same_result.sh [options of two_hosts.sh] PROGRAM [ARGUMENT...]
set -euo pipefail
here=$(dirname "$(realpath "$0")")

options=()
while [[ $1 == --* ]]; do
  options+=("$1" "$2")
  shift 2
done

# Two hosts first: where there are none, nothing else needs to run.
status=0
on_hosts=$("$here/two_hosts.sh" "${options[@]}" "$@") || status=$?
echo "--- two hosts"
echo "$on_hosts"
((status == 0)) || exit "$status"

on_nodes=$(OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 HORA_RANKS_PER_NODE=2 \
  mpirun -np 4 --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
  --mca btl self,vader,tcp "$@" < /dev/null)
echo "--- virtual nodes"
echo "$on_nodes"

results_of() { grep '^result ' <<< "$1" || true; }
if [[ -z $(results_of "$on_hosts") ]]; then
  echo "The program printed no line that begins with 'result '" >&2
  exit 1
fi
if [[ $(results_of "$on_hosts") != "$(results_of "$on_nodes")" ]]; then
  echo "The results differ" >&2
  exit 1
fi
for output in "$on_hosts" "$on_nodes"; do
  if grep -q 'nodes ' <<< "$output" && ! grep -q 'nodes 2' <<< "$output"; then
    echo "The program did not see two nodes" >&2
    exit 1
  fi
done
echo "The results are equal"
