# The two hosts of two_hosts.sh, which sources this. Uses its variable $rate; sets $work, a folder.
# shellcheck shell=bash disable=SC2154

host_a_address=10.77.0.1 host_b_address=10.77.0.2
host_a_pid='' host_b_pid='' mpirun_pid=''

skip() {
  echo "SKIPPED: no two hosts on this machine: $1"
  exit 77
}

# start_host NAME FLAG...: sets started_pid to a process that holds the host's namespaces. FLAG goes
# to unshare. pdeathsig and kill-child: the host ends with this script, however that ends.
start_host() {
  local name=$1
  shift
  mkdir -p "$work/$name/tmp"
  setpriv --pdeathsig KILL unshare --net --uts --ipc --mount "$@" bash -c '
    set -e
    hostname "$1"
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    [[ ! -e /etc/hosts ]] || mount --bind "$2/hosts" /etc/hosts
    ip link set lo up
    echo ready > "$2/$1/ready"
    exec sleep infinity' "$name" "$name" "$work" < /dev/null > "$work/$name/log" 2>&1 &
  local holder=$!
  disown "$holder"
  for _ in {1..100}; do
    [[ -e $work/$name/ready ]] && break
    kill -0 "$holder" 2> /dev/null || break
    sleep 0.05
  done
  [[ -e $work/$name/ready ]] || skip "host $name did not start: $(tail -n 1 "$work/$name/log")"
  # With --fork the namespaces belong to unshare's child.
  if [[ " $* " == *" --fork "* ]]; then
    read -r holder _ < <(cat "/proc/$holder/task/$holder/children" && echo)
  fi
  started_pid=$holder
}

# They end with the script, however that ends; where it ends well, nothing may be left on them.
start_hosts() {
  unshare --net --uts --ipc --mount --pid --fork ip link set lo up 2> /dev/null ||
    skip "the kernel refuses namespaces (in a container they need CAP_SYS_ADMIN and CAP_NET_ADMIN)"
  work=$(mktemp -d "${TMPDIR:-/tmp}/two_hosts.XXXXXX")
  trap end_hosts EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  printf '127.0.0.1 localhost\n%s host-a\n%s host-b\n' \
    "$host_a_address" "$host_b_address" > "$work/hosts"
  start_host host-a
  host_a_pid=$started_pid
  start_host host-b --pid --fork --kill-child --mount-proc
  host_b_pid=$started_pid

  ip link add link0 netns "$host_a_pid" type veth peer name link0 netns "$host_b_pid" ||
    skip "the kernel makes no veth pair"
  local pid address
  for pid in "$host_a_pid" "$host_b_pid"; do
    address=$host_a_address
    [[ $pid == "$host_b_pid" ]] && address=$host_b_address
    nsenter --net --target "$pid" ip address add "$address/24" dev link0
    nsenter --net --target "$pid" ip link set link0 up
    if [[ -n $rate ]]; then
      nsenter --net --target "$pid" \
        tc qdisc add dev link0 root tbf rate "$rate" burst 256kb latency 20ms
    fi
  done

  # What mpirun calls in ssh's place to start its daemon on the other host.
  cat > "$work/remote_shell" << AGENT
#!/bin/bash
while [[ \$1 == -* ]]; do shift; done
[[ \$1 == $host_b_address ]] || { echo "unknown host \$1" >&2; exit 1; }
shift
exec taskset -c $(cores_of_host 1) nsenter --net --uts --ipc --mount --pid --root --wd --target $host_b_pid \\
  env TMPDIR="$work/host-b/tmp" /bin/sh -c "\$*"
AGENT
  chmod +x "$work/remote_shell"
}

# cores_of_host 0|1: that half of the cores that this script may use, as taskset takes them; all of
# them where there is one alone.
cores_of_host() {
  local list range cores=()
  list=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
  for range in ${list//,/ }; do mapfile -t -O "${#cores[@]}" cores < <(seq "${range%-*}" "${range#*-}"); done
  local half=$((${#cores[@]} / 2)) IFS=,
  if ((half == 0)); then
    echo "${cores[*]}"
  else
    echo "${cores[*]:$1 * half:half}"
  fi
}

# run_on_hosts RANKS_PER_HOST PROGRAM ARGUMENT...
run_on_hosts() {
  local ranks=$1 forward=() name
  shift
  while IFS='=' read -r name _; do
    [[ $name =~ ^(HORA_[A-Z_]+|OMP_NUM_THREADS|TEST_SEED|[ALUT][A-Z]*SAN_OPTIONS)$ ]] &&
      forward+=(-x "$name")
  done < <(env)
  setpriv --pdeathsig TERM taskset -c "$(cores_of_host 0)" \
    nsenter --net --uts --ipc --mount --root --wd --target "$host_a_pid" \
    env TMPDIR="$work/host-a/tmp" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    mpirun -np $((2 * ranks)) --host "$host_a_address:$ranks,$host_b_address:$ranks" \
    --oversubscribe --bind-to none \
    --mca plm_rsh_agent "$work/remote_shell" --mca mpi_yield_when_idle 1 \
    --mca btl self,vader,tcp --mca btl_vader_backing_directory /dev/shm \
    --mca oob_tcp_if_include 10.77.0.0/24 --mca btl_tcp_if_include 10.77.0.0/24 --wdir "$PWD" "${forward[@]}" "$@" < /dev/null &
  mpirun_pid=$!
  local status=0
  wait "$mpirun_pid" || status=$?
  mpirun_pid=
  return "$status"
}

# "<bytes sent by host A> <bytes received by host A>"
link_bytes() {
  nsenter --net --target "$host_a_pid" cat /proc/net/dev |
    awk '$1 == "link0:" { print $10, $2 }'
}

# processes_on PID: "<number> <name>" of those in the host's network, but for what holds it.
processes_on() {
  local space process name
  space=$(readlink "/proc/$1/ns/net")
  for process in /proc/[0-9]*; do
    [[ $(readlink "$process/ns/net" 2> /dev/null) == "$space" ]] || continue
    read -r name 2> /dev/null < "$process/comm" || continue
    [[ $name =~ ^(sleep|unshare)$ ]] || echo "${process#/proc/} $name"
  done
}

# What is left on each host, one a line: processes, its own /dev/shm and TMPDIR, System V objects.
left_on_hosts() {
  local name pid
  for name in host-a host-b; do
    pid=$host_a_pid
    [[ $name == host-a ]] || pid=$host_b_pid
    processes_on "$pid" | sed "s/^/$name: process /"
    nsenter --mount --root --target "$pid" find /dev/shm -mindepth 1 -printf "$name: %p\n"
    find "$work/$name/tmp" -mindepth 1 -maxdepth 1 -printf "$name: %p\n"
    nsenter --ipc --target "$pid" awk -v name="$name" 'FNR > 1 {
      print name ": System V " (FILENAME ~ /shm$/ ? "segment " : "semaphores ") $2
    }' /proc/sysvipc/shm /proc/sysvipc/sem
  done
}

# At the script's end, however that comes. Where all went well, nothing may be left on the hosts.
end_hosts() {
  local status=$? left=''
  if ((status == 0)) && [[ -n $host_b_pid ]]; then
    # mpirun's daemons need a moment to go.
    for _ in {1..50}; do
      left=$(left_on_hosts) || left="they cannot be looked at"
      [[ -n $left ]] || break
      sleep 0.1
    done
    if [[ -n $left ]]; then
      echo "Left behind on the hosts:"
      echo "$left"
      status=1
    fi
  fi
  stop_hosts
  exit "$status"
}

stop_hosts() {
  local namespace process
  if [[ -n $mpirun_pid ]] && kill -TERM "$mpirun_pid" 2> /dev/null; then
    for _ in {1..50}; do
      kill -0 "$mpirun_pid" 2> /dev/null || break
      sleep 0.1
    done
  fi
  # Processes that are still in host A's network, its holder included; host B's init ends its own.
  if [[ -n $host_a_pid ]] && namespace=$(readlink "/proc/$host_a_pid/ns/net"); then
    for process in /proc/[0-9]*; do
      if [[ $(readlink "$process/ns/net" 2> /dev/null) == "$namespace" ]]; then
        kill -KILL "${process#/proc/}" 2> /dev/null || true
      fi
    done
  fi
  [[ -z $host_b_pid ]] || kill -KILL "$host_b_pid" 2> /dev/null || true
  rm -rf "$work"
}
