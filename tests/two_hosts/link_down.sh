#!/usr/bin/env bash
# The link between two emulated hosts goes down while a job runs on them: all that it has started
# ends within 35 s, and who is not reached is named. Once the horaruns have met over that link, and
# once it carries the ranks' data alone.
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

# cut_link FILE: once all ranks have said there that they run.
cut_link() {
  for _ in {1..300}; do
    [[ $(grep -c ': ready' "$1") == 4 ]] && break
    sleep 0.1
  done
  [[ $(grep -c ': ready' "$1") == 4 ]] || fail "the job has not begun: $(cat "$work"/node*)"
  on_host "$host_a_pid" ip link set link0 down
  begin=${EPOCHREALTIME/./}
}
passed() { echo $((${EPOCHREALTIME/./} - begin)); }

# await_end PID...: of these, and of all processes on the hosts.
await_end() {
  local pid left
  for pid; do
    while kill -0 "$pid" 2> /dev/null; do
      (($(passed) <= limit)) || fail "a horarun goes on after $limit us"
      sleep 0.2
    done
  done
  while left=$(processes_on "$host_a_pid"; processes_on "$host_b_pid") && [[ -n $left ]]; do
    (($(passed) <= limit)) || fail "after $limit us there are still: $left"
    sleep 0.2
  done
  echo "all processes have ended $(passed) us after the link"
}

cut_link "$work/node0"
await_end "$node0" "$node1"
for node in 0 1; do
  pid=node$node status=0
  wait "${!pid}" || status=$?
  echo "--- node $node: exit status $status"
  cat "$work/node$node"
  ((status == 69)) || fail "node $node ended with exit status $status"
done
grep -q 'host host-b has not been heard from for 30 s' "$work/node0" || fail "node 1 is not named"
grep -q 'node 0 (host-a) has not been heard from for 30 s' "$work/node1" || fail "node 0 is not named"

on_host "$host_a_pid" ip link set link0 up
await_carrier "$host_a_pid" link0
await_carrier "$host_b_pid" link0
write_ssh
(exec_on host-a HORARUN_SSH="$work/ssh" "$horarun" -H host-a:2,host-b:2 "$program" none - - 0) \
  > "$work/node_data" 2>&1 &
job=$!
cut_link "$work/node_data"
await_end "$job"
status=0
wait "$job" || status=$?
cat "$work/node_data"
((status == 69)) || fail "exit status $status"
grep -q "hosts host-a and host-b reach each other no more .*10.77.0.0/24 (host-a: link0, host-b: link0)" \
  "$work/node_data" || fail "neither the hosts nor their network are named"
