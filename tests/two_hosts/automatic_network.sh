#!/usr/bin/env bash
# horarun without --network-interfaces on two emulated hosts whose link has another name on each, beside
# interfaces that reach no other host (a docker0 on each, a private bridge on the first): it says that
# it uses the link, and everything travels over that, as the interfaces' own counters say.
#
# Usage: automatic_network.sh HORARUN PROGRAM (horarun, two_hosts_allreduce)
# Exit code: 0; 1 where another network is named or used; 77 where this machine allows no hosts.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=horarun_hosts.sh
source "$(dirname "$(realpath "$0")")/horarun_hosts.sh"
begin_hosts "$@"
horarun=$1 program=$2
add_decoys
rename_link
write_ssh

payload=16777216 status=0 # a node sends as much, and receives it
before=$(counters)
(exec_on host-a HORARUN_SSH="$work/ssh" "$horarun" -H host-a:2,host-b:2 "$program" "$payload") \
  > "$work/output" 2>&1 || status=$?
cat "$work/output"
((status == 0)) || fail "exit status $status"
grep -q 'ranks 4 nodes 2' "$work/output" || fail "not on two nodes"
grep -qxF 'horarun: network: 10.77.0.0/24 (host-a: link0, host-b: ens3)' "$work/output" ||
  fail "another network is named"
expect_carried $((2 * payload)) "$before" link0 ens3
