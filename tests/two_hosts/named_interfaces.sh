#!/usr/bin/env bash
# --network-interfaces NAME on two emulated hosts with two links between them, and interfaces that
# reach no other host: everything travels over the named link, as the interfaces' own counters say. A
# name that a host does not have is an error within two seconds, which names host and interface.
#
# Usage: named_interfaces.sh HORARUN PROGRAM (horarun, two_hosts_allreduce)
# Exit code: 0; 1 where bytes travel over another interface; 77 where this machine allows no hosts.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=horarun_hosts.sh
source "$(dirname "$(realpath "$0")")/horarun_hosts.sh"
begin_hosts "$@"
horarun=$1 program=$2
add_decoys
add_link link1
write_ssh

payload=16777216  # of each direction: a node sends half as parts of the sum, half as its other half

# run NAME: both links are tried, so that neither is the one that would be chosen anyway.
run() {
  local status=0 before
  before=$(counters)
  (exec_on host-a HORARUN_SSH="$work/ssh" "$horarun" -H host-a:2,host-b:2 \
    --network-interfaces "$1" "$program" "$payload") > "$work/output" 2>&1 || status=$?
  cat "$work/output"
  ((status == 0)) || fail "exit status $status with --network-interfaces $1"
  grep -q 'ranks 4 nodes 2' "$work/output" || fail "not on two nodes"
  expect_carried $((2 * payload)) "$before" "$1"
}
run link0
run link1

# refuse NAME TEXT: the error says TEXT.
refuse() {
  local begin=${EPOCHREALTIME/./} status=0 time
  (exec_on host-a HORARUN_SSH="$work/ssh" "$horarun" -H host-a:2,host-b:2 \
    --network-interfaces "$1" "$program" "$payload") > "$work/output" 2>&1 || status=$?
  time=$((${EPOCHREALTIME/./} - begin))
  cat "$work/output"
  ((status == 69)) || fail "exit status $status with --network-interfaces $1"
  grep -qF -- "$2" "$work/output" || fail "expected: $2"
  ((time < 2000000)) || fail "the error came after $time us"
}
refuse link7 "--network-interfaces link7: host host-a has no such interface"
refuse private0 "--network-interfaces private0: host host-b has no such interface"
