#!/usr/bin/env bash
# The launcher's choice of interfaces on two emulated hosts: each has a docker0 with the same address,
# the first a second bridge, and their common link has another name on each. The link is chosen. Where
# nothing joins the hosts (their link is down) a warning says so. Their launchers meet over it, too.
#
# Usage: interface_choice.sh CHOICE MEETING (two_hosts_interface_choice, two_hosts_rendezvous)
# Exit code: 0; 1 where another network is chosen; 77 where this machine allows no emulated hosts.
set -euo pipefail

skip() {
  echo "SKIPPED: no two hosts on this machine: $1"
  exit 77
}

export PATH=$PATH:/usr/sbin:/sbin
for tool in ip unshare nsenter setpriv; do
  command -v "$tool" > /dev/null ||
    skip "the command $tool is missing (Debian: iproute2, util-linux)"
done
if ((EUID != 0)) && [[ -z ${TWO_HOSTS_IN_USER_NAMESPACE:-} ]]; then
  unshare --user --map-root-user --net true 2> /dev/null ||
    skip "this user may not make namespaces (run as root, or allow unprivileged user namespaces)"
  TWO_HOSTS_IN_USER_NAMESPACE=1 exec unshare --user --map-root-user --net "$BASH" "$0" "$@"
fi
unshare --net --uts --ipc --mount --pid --fork true 2> /dev/null ||
  skip "the kernel refuses new namespaces (in a container: it needs CAP_SYS_ADMIN)"

# shellcheck source-path=SCRIPTDIR source=hosts.sh
source "$(dirname "$(realpath "$0")")/hosts.sh"
# shellcheck disable=SC2034  # hosts.sh reads it
rate=
work=$(mktemp -d "${TMPDIR:-/tmp}/two_hosts.XXXXXX")
trap stop_hosts EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
start_hosts

on_host() {
  local pid=$1
  shift
  nsenter --net --target "$pid" "$@"
}

for pid in "$host_a_pid" "$host_b_pid"; do
  # A pair of which both ends are on this host: up and running, as the bridge of a container.
  on_host "$pid" ip link add docker0 type veth peer name container0
  on_host "$pid" ip address add 172.17.0.1/16 dev docker0
  on_host "$pid" ip link set docker0 up
  on_host "$pid" ip link set container0 up
done
on_host "$host_b_pid" ip link set link0 down
on_host "$host_b_pid" ip link set link0 name ens3
on_host "$host_b_pid" ip link set ens3 up
on_host "$host_a_pid" ip link add private0 type veth peer name private1
on_host "$host_a_pid" ip address add 192.168.122.1/24 dev private0
on_host "$host_a_pid" ip link set private0 up
on_host "$host_a_pid" ip link set private1 up

# The kernel gives an interface its carrier some time after it is set up.
for _ in {1..100}; do
  [[ $(on_host "$host_b_pid" ip -brief link show ens3) == *" UP "* ]] && break
  sleep 0.05
done

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
"$2" "$host_a_pid" "$host_b_pid" "$work/meeting"
rmdir "$work/meeting"
on_host "$host_b_pid" ip link set ens3 down
expect "warning: "
