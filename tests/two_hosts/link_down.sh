#!/usr/bin/env bash
# The link between two emulated hosts goes down while a job runs on them, whose horaruns have met
# over it: both end, and all that they have started, within 35 s.
#
# Usage: link_down.sh HORARUN PROGRAM (horarun, fault_rank)
# Exit code: 0; 1 where something goes on; 77 where this machine allows no hosts.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=horarun_hosts.sh
source "$(dirname "$(realpath "$0")")/horarun_hosts.sh"
begin_hosts "$@"
horarun=$1 program=$2
limit=35000000  # microseconds, promised after the last heartbeat

# start NAME NODE: sets node_pid.
start() {
  (exec_on "$1" HORARUN_TOKEN=secret-of-this-test "$horarun" --rendezvous tcp://10.77.0.1:29500 \
    --nnodes 2 --node-rank "$2" --nproc-per-node 2 "$program" none - - 0) \
    > "$work/node$2" 2>&1 &
  node_pid=$!
}
start host-a 0
node0=$node_pid
start host-b 1
node1=$node_pid

ready() { [[ $(grep -c ': ready' "$work/node0") == 4 ]]; }
for _ in {1..300}; do
  ready && break
  sleep 0.1
done
ready || fail "the job has not begun: $(cat "$work/node0" "$work/node1")"

on_host "$host_a_pid" ip link set link0 down
begin=${EPOCHREALTIME/./}
passed() { echo $((${EPOCHREALTIME/./} - begin)); }

for pid in "$node0" "$node1"; do
  while kill -0 "$pid" 2> /dev/null; do
    (($(passed) <= limit)) || fail "a node's horarun goes on after $limit us"
    sleep 0.2
  done
done
while left=$(processes_on "$host_a_pid"; processes_on "$host_b_pid") && [[ -n $left ]]; do
  (($(passed) <= limit)) || fail "after $limit us there are still: $left"
  sleep 0.2
done
echo "all processes have ended $(passed) us after the link"
for node in 0 1; do
  pid=node$node status=0
  wait "${!pid}" || status=$?
  echo "--- node $node: exit status $status"
  cat "$work/node$node"
  ((status == 69)) || fail "node $node ended with exit status $status"
done
grep -q 'host host-b has not been heard from for 30 s' "$work/node0" || fail "node 1 is not named"
