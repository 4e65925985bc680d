#!/bin/sh
# One simulation: run_ranks.sh BUILD_FOLDER RANKS NETWORK [OPTIONS OF scale]
# NETWORK: of platform.py. RANKS: a multiple of 8.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 3 ] || { sed -n '2,3s/^# //p' "$0" >&2; exit 2; }
program=$1/bench/scale/scale.so ranks=$2 network=$3
shift 3
per_node=8
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 "$here/platform.py" $((ranks / per_node)) "$network" > "$folder/platform.xml"
i=0
while [ "$i" -lt "$ranks" ]; do
  echo "node-$((i / per_node)).simulated"
  i=$((i + 1))
done > "$folder/hosts"
# Of the factors that SMPI has measured on one cluster: none. Each message costs its sender and its
# receiver a microsecond, asking for it and all computation nothing.
smpirun -np "$ranks" -platform "$folder/platform.xml" -hostfile "$folder/hosts" \
  --cfg=smpi/simulate-computation:no --cfg=smpi/privatization:no \
  --cfg=smpi/bw-factor:0:1 --cfg=smpi/lat-factor:0:1 --cfg=smpi/test:0 --cfg=smpi/async-small-thresh:65536 \
  --cfg=smpi/os:0:1e-6:0 --cfg=smpi/ois:0:1e-6:0 --cfg=smpi/or:0:1e-6:0 \
  --cfg=contexts/stack-size:256 --log=root.thres:warning \
  "$program" --network "$network" --ranks-per-node "$per_node" "$@"
