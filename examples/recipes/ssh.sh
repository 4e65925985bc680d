#!/usr/bin/env bash
# Training on several hosts that reach each other by ssh and share no file system. One builds, the
# others get the program and the data from it. On the first host, from the repository's root:
#
#     cmake --preset release && cmake --build build/release --target horarun cifar10
#     examples/recipes/ssh.sh nodeA:2,nodeB:2 build/data/digits build/release/examples/cifar10 --epochs 4
#
# nodeA:2 is a host and its number of ranks, under a name that ssh takes on this host. DATA, the second
# argument, is given to the program as --data; "-" where it takes none. What follows are the program's
# own options. FOLDER [default: $HOME/hora] is where all lies, the same path on every host:
#     FOLDER/bin/horarun, FOLDER/bin/PROGRAM, FOLDER/data
# Copied is what differs, programs by their bytes, data by names and sizes.
#
# Once, before:
# - Keys: `ssh-keygen -t ed25519` on this host, `ssh-copy-id nodeB` for every host, this one too.
#   `ssh nodeB true` must then ask for nothing. Only this host logs in to others, so that the others
#   need no keys.
# - Packages: every host has the same Debian packages, for programs are linked to them. This script
#   names what a host lacks; `cmake/debian-packages.txt` has them all.
# - Processors of one kind, and a firewall that lets these hosts reach each other on all ports.
#
# Checkpoints: with `--model-dir models --resume auto` rank 0 writes them on the first host, and with
# --checkpoint-per-node each host its own, so that any of them may be lost.
#
# Tried: on two hosts of one machine (network namespaces with homes of their own) under Debian 12's
# OpenSSH and Open MPI 4.1.4, as a user other than root; tests/two_hosts/ssh_recipe.sh does so without
# sshd.
set -euo pipefail
if (($# < 3)); then
  echo "Usage: ssh.sh HOST:RANKS,... DATA|- PROGRAM [OPTION OF THE PROGRAM...]" >&2
  exit 2
fi
places=$1 data=$2 program=$3
shift 3
folder=${FOLDER:-$HOME/hora}
horarun=${HORARUN:-$(dirname "$(dirname "$(realpath -- "$program")")")/core/launch/horarun}

fail() {
  echo "ssh.sh: $*" >&2
  exit 1
}
[[ $places =~ ^[^,:]+:[1-9][0-9]*(,[^,:]+:[1-9][0-9]*)*$ ]] || fail "$places is not HOST:RANKS,..."
[[ -x $program && -x $horarun ]] || fail "build $program and $horarun first: see this script's head"
[[ $data == - || -d $data ]] || fail "there is no folder $data"
[[ $folder == /* && $folder != *[!A-Za-z0-9._/-]* ]] || fail "FOLDER $folder: an absolute path of letters, digits and ._-/"

# On every host: sizes and names of what lies in a folder, as one number; programs by their bytes.
readonly listing='find . -type f -printf "%s %p\n" | LC_ALL=C sort | sha256sum'
readonly bytes='find . -type f -exec sha256sum {} + | LC_ALL=C sort | sha256sum'

# copy_to HOST FROM TO MEASURE: the folder FROM of this host to TO of HOST, where MEASURE differs.
copy_to() {
  local host=$1 from=$2 to=$3 measure=$4 mine theirs
  mine=$(cd "$from" && eval "$measure")
  theirs=$(ssh -o BatchMode=yes "$host" "mkdir -p '$to' && cd '$to' && $measure")
  [[ $mine != "$theirs" ]] || return 0
  echo "copying $from to $host:$to"
  tar -C "$from" -c . | ssh -o BatchMode=yes "$host" "rm -rf '$to' && mkdir -p '$to' && tar -C '$to' -x --no-same-owner"
}

staged=$(mktemp -d)
trap 'rm -rf "$staged"' EXIT
cp -- "$program" "$horarun" "$staged"

ranks=0
IFS=, read -ra entries <<< "$places"
for entry in "${entries[@]}"; do
  host=${entry%:*} ranks=$((ranks + ${entry##*:}))
  ssh -o BatchMode=yes -o ConnectTimeout=10 "$host" true ||
    fail "$host: ssh does not log in without a question; see this script's head"
  copy_to "$host" "$staged" "$folder/bin" "$bytes"
  [[ $data == - ]] || copy_to "$host" "$data" "$folder/data" "$listing"
  missing=$(ssh -o BatchMode=yes "$host" "ldd '$folder'/bin/* | grep 'not found' | sort -u; command -v mpirun > /dev/null || echo mpirun")
  [[ -z $missing ]] || fail "$host lacks packages (cmake/debian-packages.txt) that bring: $missing"
  echo "== $host"
  ssh -o BatchMode=yes "$host" "$folder/bin/horarun --check-build"
done

arguments=()
[[ $data == - ]] || arguments=(--data "$folder/data")
command=("$folder/bin/horarun" -np "$ranks" -H "$places" --wdir "$folder"
  "$folder/bin/$(basename -- "$program")" "${arguments[@]}" "$@")
echo "== what horarun is going to execute"
"$folder/bin/horarun" --dry-run "${command[@]:1}"
echo "== ${command[*]}"
rm -rf "$staged"
exec "${command[@]}"
