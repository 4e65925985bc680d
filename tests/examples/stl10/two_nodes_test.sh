#!/usr/bin/env bash
# STL-10 on two nodes of one rank, each started by itself, as users of torch.distributed do: they meet
# at an address, in a file's folder, and by the environment. Node 1 comes later, node 0 says for whom
# it waits; each epoch's images are divided without overlap, and both nodes end with the same weights.
# Usage: two_nodes_test.sh MAKE_PHOTOGRAPHS HORARUN STL10 READ_LOG [SECONDS [ARCHITECTURE]]
# SECONDS: by which node 1 comes later [default: 3].
set -euo pipefail
make_photographs=$1 horarun=$2 stl10=$3 read_log=$4 later=${5:-3} architecture=${6:-resnet20}
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d "${TMPDIR:-/tmp}/stl10_two_nodes.XXXXXX")
nodes=()
finish() {
  local node
  for node in "${nodes[@]}"; do
    kill -TERM "$node" 2> /dev/null || true
  done
  wait
  rm -rf "$work"
}
trap finish EXIT
cd "$work"

fail() {
  tail -n 40 node?.log 2> /dev/null || true
  echo "FAILED: $*"
  exit 1
}
skip() {
  echo "SKIPPED: $*"
  exit 77
}

unshare --uts --mount true 2> /dev/null || skip "needs root, for nodes with names of their own"
for python in python3 /usr/bin/python3; do
  ! "$python" -c 'import PIL, matplotlib, scipy, sklearn' 2> /dev/null || break
done
"$python" "$make_photographs" --train 3 --val 1 photographs > output 2>&1 || fail "$(cat output)"
"$python" "$here/make_stl10.py" photographs data || fail "make_stl10.py"

# Of 30 images 24 make 3 steps of 2 ranks.
readonly epochs=2 batch=4 images=24

# start_node NUMBER FLAG...: a host of its own name, with a folder for checkpoints that the other does
# not see; it is copied to nodeNUMBER when the job has ended.
start_node() {
  local node=$1
  shift
  # shellcheck disable=SC2016  # for the shell on the node to expand
  setpriv --pdeathsig TERM unshare --uts --mount bash -c '
    hostname "node$1"
    mkdir -p models "node$1"
    mount -t tmpfs tmpfs models
    cd .
    shift
    "$@" &
    job=$!
    trap "kill -TERM $job" TERM
    wait $job
    status=$?
    cp -r models/. "$(hostname)/"
    exit $status' bash "$node" \
    env TMPDIR="$work" OMP_NUM_THREADS=1 LD_PRELOAD="$read_log" READ_LOG="$work/read" \
    timeout --kill-after=10 120 "$horarun" "$@" --nproc-per-node 1 --start-timeout 100 \
    -x LD_PRELOAD -x READ_LOG "$stl10" --data data --epochs $epochs --batch $batch --seed 3 \
    -a "$architecture" --stem imagenet --lr 0.01 --model-dir models --checkpoint-per-node \
    < /dev/null > "node$node.log" 2>&1 &
  nodes+=($!)
}

# await TEXT FILE
await() {
  for _ in {1..300}; do
    ! grep -qF -- "$1" "$2" || return 0
    sleep 0.1
  done
  fail "node 0 does not say '$1'"
}

# train WHAT FLAG...: FLAG of both nodes; where there are none, by the environment.
train() {
  local what=$1 node began waited code
  shift
  echo "=== $what"
  rm -rf read.* node0 node1 models nodes_met
  nodes=()
  for node in 0 1; do
    began=$SECONDS
    if (($# > 0)); then
      start_node $node "$@" --nnodes 2 --node-rank $node
    else
      MASTER_ADDR=127.0.0.1 MASTER_PORT=$port NNODES=2 NODE_RANK=$node start_node $node
    fi
    if ((node == 0)); then
      sleep "$later"
      await 'node 0 (host node0) waits for node 1 of 2' node0.log
    fi
  done
  for node in 1 0; do
    code=0
    wait "${nodes[node]}" || code=$?
    ((code == 0)) || fail "node $node: exit code $code"
  done
  nodes=()
  waited=$((SECONDS - began))
  echo "done $waited s after node 1 came"
  grep -q 'ranks: 2 on 2 nodes (1 + 1)' node0.log || fail "not on two nodes"
  grep -qE "epoch $epochs/$epochs: .*\(.* of 10 images\)" node0.log || fail "validation is not of 10"

  # One log a rank: the images of an epoch, which are all others than the other rank's.
  local logs=()
  mapfile -t logs < <(compgen -G 'read.*')
  ((${#logs[@]} == 2)) || fail "${#logs[@]} processes have read images, expected 2"
  for node in 0 1; do
    (($(wc -l < "${logs[node]}") == epochs * images / 2)) ||
      fail "a rank has read $(wc -l < "${logs[node]}") images, expected $((epochs * images / 2))"
  done
  local epoch share=$((images / 2)) distinct
  for ((epoch = 0; epoch < epochs; ++epoch)); do
    distinct=$(for node in 0 1; do
      sed -n "$((epoch * share + 1)),$(((epoch + 1) * share))p" "${logs[node]}"
    done | sort -n | uniq | wc -l)
    ((distinct == images)) || fail "epoch $((epoch + 1)) has $distinct different images, expected $images"
  done

  cmp node0/last/weights.safetensors node1/last/weights.safetensors || fail "weights differ"
}

port=$("$python" -c 'import socket
with socket.socket() as s:
    s.bind(("127.0.0.1", 0))
    print(s.getsockname()[1])')
export HORARUN_TOKEN=a-token-of-this-test
mkdir -m 700 meeting
train "at an address" --rendezvous "tcp://127.0.0.1:$port"
train "in a folder" --rendezvous "file://$work/meeting"
train "by the environment"
echo "all as expected"
