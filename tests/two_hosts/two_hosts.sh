#!/usr/bin/env bash
# Runs a program under mpirun on two emulated hosts of this machine: each has its own network, host
# name, System V and POSIX shared memory and temporary folder; one link of their own joins them.
# The second has its own process numbers, too. Each has half of the cores.
#
# Usage: two_hosts.sh [--ranks-per-host N] [--rate RATE] [--min-bytes N] [--max-bytes N]
#                     PROGRAM [ARGUMENT...]
#   --ranks-per-host N  2 by default
#   --rate RATE         of the link, as tc writes it: 1gbit (unlimited by default)
#   --min-bytes N       fail where fewer bytes crossed the link, in either direction
#   --max-bytes N       fail where more did
# HORA_* variables reach every rank. Exit code: the program's; 1 where the bytes are out of bounds or
# something is left on a host (processes, files in /dev/shm or TMPDIR, System V objects); 77 where this machine allows no emulated hosts.
# Leaves nothing behind: everything lives in unnamed namespaces, which end with their processes.
set -euo pipefail

ranks_per_host=2 rate='' min_bytes=0 max_bytes=''
while (($# > 0)); do
  case $1 in
    --ranks-per-host) ranks_per_host=$2; shift 2 ;;
    --rate) rate=$2; shift 2 ;;
    --min-bytes) min_bytes=$2; shift 2 ;;
    --max-bytes) max_bytes=$2; shift 2 ;;
    --) shift; break ;;
    -h | --help) sed -n '2,/^set/{/^set/d; s/^# \{0,1\}//; p}' "$0"; exit 0 ;;
    -*) echo "two_hosts.sh: unknown option $1; see --help" >&2; exit 2 ;;
    *) break ;;
  esac
done
(($# > 0)) || { echo "two_hosts.sh: no program given; see --help" >&2; exit 2; }

# shellcheck source-path=SCRIPTDIR source=hosts.sh
source "$(dirname "$(realpath "$0")")/hosts.sh"

for tool in ip tc unshare nsenter setpriv taskset mpirun; do
  command -v "$tool" > /dev/null || [[ -x /sbin/$tool || -x /usr/sbin/$tool ]] ||
    skip "the command $tool is missing (Debian: iproute2, util-linux, openmpi-bin)"
done
export PATH=$PATH:/usr/sbin:/sbin

# Without root, a user namespace gives root over namespaces of its own, where the kernel lets it.
if ((EUID != 0)) && [[ -z ${TWO_HOSTS_IN_USER_NAMESPACE:-} ]]; then
  unshare --user --map-root-user --net true 2> /dev/null ||
    skip "this user may not make namespaces (run as root, or allow unprivileged user namespaces)"
  limits=(--ranks-per-host "$ranks_per_host" --min-bytes "$min_bytes")
  [[ -z $rate ]] || limits+=(--rate "$rate")
  [[ -z $max_bytes ]] || limits+=(--max-bytes "$max_bytes")
  TWO_HOSTS_IN_USER_NAMESPACE=1 exec unshare --user --map-root-user --net "$BASH" "$0" "${limits[@]}" -- "$@"
fi
start_hosts

status=0
run_on_hosts "$ranks_per_host" "$@" || status=$?

read -r sent received < <(link_bytes)
echo "Over the link between the two hosts: $sent bytes one way, $received bytes the other"
for bytes in "$sent" "$received"; do
  if ((bytes < min_bytes)); then
    echo "Too few: at least $min_bytes must cross in each direction" >&2
    status=$((status == 0 ? 1 : status))
  elif [[ -n $max_bytes ]] && ((bytes > max_bytes)); then
    echo "Too many: at most $max_bytes may cross in each direction" >&2
    status=$((status == 0 ? 1 : status))
  fi
done
exit "$status"
