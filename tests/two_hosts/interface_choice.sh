#!/usr/bin/env bash
# The launcher's choice of interfaces on two emulated hosts: each has a docker0 with the same address,
# the first a second bridge, and their common link has another name on each. The link is chosen. Where
# nothing joins the hosts (their link is down) a warning says so. Their launchers meet over it, too.
#
# Usage: interface_choice.sh PROGRAM (two_hosts_launchers)
# Exit code: 0; 1 where another network is chosen; 77 where this machine allows no emulated hosts.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=horarun_hosts.sh
source "$(dirname "$(realpath "$0")")/horarun_hosts.sh"
begin_hosts "$@"

add_decoys
rename_link

# expect TEXT: in what the program prints.
expect() {
  local printed
  printed=$("$program" "$host_a_pid" "$host_b_pid")
  echo "$printed"
  [[ $printed == *"$1"* ]] || { echo "interface_choice.sh: expected: $1" >&2; exit 1; }
}

program=$1
expect "network: 10.77.0.0/24 (a: link0, b: ens3)"
mkdir -m 700 "$work/meeting"
"$program" "$host_a_pid" "$host_b_pid" "$work/meeting"
rmdir "$work/meeting"
on_host "$host_b_pid" ip link set ens3 down
expect "warning: "
