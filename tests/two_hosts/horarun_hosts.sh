# Two emulated hosts (hosts.sh), and horarun on them: sourced by the tests of the launcher. Uses the
# script's own name and arguments.
# shellcheck shell=bash

# shellcheck source-path=SCRIPTDIR source=hosts.sh
source "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/hosts.sh"

# fail TEXT...: ends the test.
fail() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

# begin_hosts ARGUMENT...: the script's own, with which it begins again where it needs a user
# namespace. They end with the script, however that ends; where it ends well, nothing may be left on
# them.
begin_hosts() {
  export PATH=$PATH:/usr/sbin:/sbin
  local tool
  for tool in ip unshare nsenter setpriv; do
    command -v "$tool" > /dev/null ||
      skip "the command $tool is missing (Debian: iproute2, util-linux)"
  done
  if ((EUID != 0)) && [[ -z ${TWO_HOSTS_IN_USER_NAMESPACE:-} ]]; then
    unshare --user --map-root-user --net true 2> /dev/null ||
      skip "this user may not make namespaces (run as root, or allow unprivileged user namespaces)"
    TWO_HOSTS_IN_USER_NAMESPACE=1 exec unshare --user --map-root-user --net "$BASH" "$0" "$@"
  fi
  # shellcheck disable=SC2034  # hosts.sh reads it
  rate=''
  start_hosts
  await_carrier "$host_a_pid" link0
  await_carrier "$host_b_pid" link0
}

# on_host PID COMMAND...: in its network.
on_host() {
  local pid=$1
  shift
  nsenter --net --target "$pid" "$@"
}

# The kernel gives an interface its carrier some time after it is set up.
await_carrier() {
  for _ in {1..100}; do
    [[ $(on_host "$1" ip -brief link show "$2") == *" UP "* ]] && return
    sleep 0.05
  done
}

# Interfaces that reach no other host: each has a docker0 with the same address, the first a second
# bridge.
add_decoys() {
  local pid
  for pid in "$host_a_pid" "$host_b_pid"; do
    # A pair of which both ends are on this host: up and running, as the bridge of a container.
    on_host "$pid" ip link add docker0 type veth peer name container0
    on_host "$pid" ip address add 172.17.0.1/16 dev docker0
    on_host "$pid" ip link set docker0 up
    on_host "$pid" ip link set container0 up
  done
  on_host "$host_a_pid" ip link add private0 type veth peer name private1
  on_host "$host_a_pid" ip address add 192.168.122.1/24 dev private0
  on_host "$host_a_pid" ip link set private0 up
  on_host "$host_a_pid" ip link set private1 up
}

# The link's end on the second host is called ens3 from here on.
rename_link() {
  on_host "$host_b_pid" ip link set link0 down
  on_host "$host_b_pid" ip link set link0 name ens3
  on_host "$host_b_pid" ip link set ens3 up
  await_carrier "$host_b_pid" ens3
}

# add_link NAME: a second link between the hosts, 10.78.0.1 and 10.78.0.2.
add_link() {
  local pid number=0
  ip link add "$1" netns "$host_a_pid" type veth peer name "$1" netns "$host_b_pid"
  for pid in "$host_a_pid" "$host_b_pid"; do
    number=$((number + 1))
    on_host "$pid" ip address add "10.78.0.$number/24" dev "$1"
    on_host "$pid" ip link set "$1" up
  done
  await_carrier "$host_a_pid" "$1"
  await_carrier "$host_b_pid" "$1"
}

# "<host>/<interface> <bytes sent and received>" of all interfaces of both hosts.
counters() {
  local pid
  for pid in "$host_a_pid" "$host_b_pid"; do
    on_host "$pid" cat /proc/net/dev |
      awk -v host="$pid" 'NR > 2 { sub(":", "", $1); print host "/" $1, $2 + $10 }'
  done
}

# expect_carried BYTES BEFORE INTERFACE...: since the counters were BEFORE, both ends of a link have
# carried so much, and no other interface more than neighbour discovery of IPv6.
expect_carried() {
  local least=$1 before=$2 after interface bytes grown ends=0
  shift 2
  after=$(counters)
  while read -r interface bytes; do
    grown=$((bytes - $(awk -v name="$interface" '$1 == name { print $2 }' <<< "$before")))
    interface=${interface#*/}
    echo "$interface: $grown bytes"
    if [[ " $* " == *" $interface "* ]]; then
      ((grown >= least)) || fail "$interface carried $grown bytes"
      ends=$((ends + 1))
    elif [[ $interface != lo ]]; then
      ((grown <= 20000)) || fail "$interface carried $grown bytes"
    fi
  done <<< "$after"
  ((ends == 2)) || fail "$ends interfaces are named $*"
}

# Arguments of env for a host's processes. Folders that the test run gave to Open MPI are not in a host's own /dev/shm.
host_environment=(-u OMPI_MCA_btl_vader_backing_directory -u OMPI_MCA_btl_sm_backing_directory
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1)

# exec_on NAME COMMAND...: in all namespaces of host-a or host-b, in place of the calling shell.
exec_on() {
  local name=$1 pid=$host_a_pid more=()
  shift
  [[ $name == host-a ]] || { pid=$host_b_pid; more=(--pid); }
  exec setpriv --pdeathsig KILL nsenter --net --uts --ipc --mount "${more[@]}" --root --wd \
    --target "$pid" env "${host_environment[@]}" TMPDIR="$work/$name/tmp" "$@" < /dev/null
}

# What horarun calls in ssh's place, for HORARUN_SSH.
write_ssh() {
  cat > "$work/ssh" << SSH
#!/bin/bash
while [[ \$1 == -* ]]; do
  [[ \$1 != -o && \$1 != -p && \$1 != -i ]] || shift
  shift
done
[[ \$1 == host-b ]] || { echo "ssh: unknown host \$1" >&2; exit 255; }
shift
[[ \$1 != -- ]] || shift
exec nsenter --net --uts --ipc --mount --pid --root --wd --target $host_b_pid \\
  env ${host_environment[*]} TMPDIR="$work/host-b/tmp" /bin/sh -c "\$*"
SSH
  chmod +x "$work/ssh"
}
