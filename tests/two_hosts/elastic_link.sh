#!/usr/bin/env bash
# The link between two emulated hosts is down for 3 s, and then for good, while an elastic job runs on them: it goes
# on over the first, and then without the second host, by each sample once.
#
# Usage: elastic_link.sh HORARUN PROGRAM (horarun, elastic_samples)
# Exit code: 0; 1 where it does not; 77 where this machine allows no hosts.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=horarun_hosts.sh
source "$(dirname "$(realpath "$0")")/horarun_hosts.sh"
begin_hosts "$@"
horarun=$1 program=$2

for node in 0 1; do
  name=host-$([[ $node == 0 ]] && echo a || echo b)
  (exec_on "$name" HORARUN_TOKEN=secret-of-this-test OMP_NUM_THREADS=1 "$horarun" --elastic --min-np 2 \
    --rendezvous tcp://10.77.0.1:29500 --nnodes 2 --node-rank "$node" --nproc-per-node 2 --no-prefix-output \
    --verbose "$program" 40) > "$work/node$node" 2>&1 &
  pids[node]=$!
done
link() { on_host "$host_a_pid" ip link set link0 "$1"; }
for _ in {1..600}; do
  grep -q 'epoch 0 is done' "$work/node0" && break  # all ranks are connected
  sleep 0.05
done
link down
sleep 3
link up
sleep 4
! grep -q 'generation 2' "$work/node0" || fail "3 s without the link have ended a generation: $(cat "$work/node0")"
link down
begin=${EPOCHREALTIME/./}
for _ in {1..200}; do
  grep -q 'generation 2' "$work/node0" && break
  sleep 0.05
done
echo "goes on $(((${EPOCHREALTIME/./} - begin) / 1000)) ms after the link"
for node in 0 1; do
  status=0
  wait "${pids[node]}" || status=$?
  echo "--- node $node: exit status $status"
  cat "$work/node$node"
  ((status == (node == 0 ? 0 : 69))) || fail "node $node ended with exit status $status"
done
grep -q 'generation 2: host host-b has not been heard from for 5 s.*; 2 ranks on host-a go on at step .*, 0 steps lost' \
  "$work/node0" || fail "it did not go on as expected"
grep -q 'generation 2: 40040 of 40040 samples were used once' "$work/node0" || fail "samples"
