#!/usr/bin/env bash
# The CIFAR-10 program under horarun, interrupted at random moments and resumed: by SIGTERM and SIGUSR1 to
# horarun and to a rank, by SIGKILL while it saves, on other numbers of ranks, with a node's files gone.
# Usage: interrupted_test.sh PREPARE_DIGITS CIFAR10 HORARUN   (TEST_SEED=N repeats a run's random moments)
set -euo pipefail
# Linux shares cores between sessions, and each rank has one: beside other tests in its own this script would
# come too late.
if [[ -z ${INTERRUPTED_TEST_SESSION:-} ]]; then
  INTERRUPTED_TEST_SESSION=1 exec setsid --wait bash "$0" "$@"
fi
# shellcheck source-path=SCRIPTDIR source=made_digits.sh
source "$(dirname "$(realpath "$0")")/made_digits.sh"
prepare_digits=$1 cifar10=$2 horarun=$3

begin_work cifar10_interrupted_test
RANDOM=${TEST_SEED:=$RANDOM}
echo "Repeat with TEST_SEED=$TEST_SEED"

made_digits 9 7 > digits.csv
"$prepare_digits" --output data < digits.csv

# begin HORARUN_OPTION... -- OPTION...: a training in the background, after this script where cores are
# scarce: it is to be interrupted before its end. Its options name a file log.json.
begin() {
  local launch=()
  while [[ $1 != -- ]]; do
    launch+=("$1")
    shift
  done
  shift
  rm -f log.json
  nice "$horarun" --no-prefix-output "${launch[@]}" "${program[@]}" --data "$work/data" -a resnet20 \
    --stem imagenet --epochs 9 --limit 1000 --batch 2 --seed 5 --log-json log.json "$@" \
    < /dev/null > output 2>&1 &
  job=$!
}
program=("$cifar10")

# ended STATUS: the training in the background ends with it. False: it had come to its end when it was to
# be interrupted.
ended() {
  local status=0
  wait "$job" || status=$?
  job=
  if (($1 != 0)) && { ((status == 0)) || grep -q '^best validation accuracy' output; }; then return 1; fi
  [[ $status == "$1" ]] || fail "exit status $status, expected $1"
}

# in_time FUNCTION: its interruptions, from the first again where one came after the end of the training: this
# script may get no core for seconds.
in_time() {
  local attempt
  for attempt in 1 2 3 4 5; do
    rm -rf models
    if "$1"; then return; fi
    echo "too late in attempt $attempt"
  done
  fail "$1: too late each time"
}

run() {
  begin "$@"
  ended 0
}

# Until some steps of an epoch have been made: log.json has a record of every tenth. False: it has ended before.
some_steps() {
  for ((i = 0; i < 1200; ++i)); do
    if grep -q '"kind":"step"' log.json 2> /dev/null; then
      sleep "0.$((RANDOM % 2))$((RANDOM % 10))"
      return
    fi
    if ! kill -0 "$job" 2> /dev/null; then
      ended 0
      return 1
    fi
    sleep 0.05
  done
  fail "no step within a minute"
}

# The rank of this number, by the order in which ranks were started on this host.
a_rank() { processes cifar10 | sort -n | sed -n "$1p"; }

# expect_lines COUNT PATTERN
expect_lines() {
  local found
  found=$(grep -cE -- "$2" output || true)
  [[ $found == "$1" ]] || fail "$found lines match '$2', expected $1"
}

# stop SIGNAL PID: and the training leaves, having saved. False: it has ended before.
stop() {
  kill "-$1" "$2" 2> /dev/null || true
  ended 75 || return 1
  expect_lines 1 "^stopped by SIG$1 (in epoch [1-9], after [0-9]+ of 1000 images|after epoch [1-8]); saved to "
}

nodes=(-np 2 --ranks-per-node 1)
echo "=== never interrupted"
run "${nodes[@]}" -- --save uninterrupted.pt
grep '^epoch' output

echo "=== interrupted three times by signals"
three_signals() {
  local interruptions=0 signal whom
  for signal in TERM USR1 "$( ((RANDOM % 2)) && echo TERM || echo USR1)"; do
    begin "${nodes[@]}" -- --model-dir models --resume auto
    some_steps || return 1
    whom=$job
    if ((++interruptions > 1)); then whom=$(a_rank $((1 + RANDOM % 2))); fi
    stop "$signal" "$whom" || return 1
    grep '^stopped' output
    expect_lines "$((interruptions > 1))" '^resumed .* from models$'
  done
}
in_time three_signals
run "${nodes[@]}" -- --model-dir models --resume auto --save resumed.pt
expect_lines 1 '^resumed (in epoch [1-9], after|after epoch [1-8])'
cmp uninterrupted.pt resumed.pt

echo "=== killed while it saves"
two_kills() {
  local kills
  for ((kills = 0; kills < 2; ++kills)); do
    begin "${nodes[@]}" -- --model-dir models --resume auto --checkpoint-every 3
    some_steps || return 1
    kill -KILL "$(a_rank $((1 + RANDOM % 2)))" 2> /dev/null || true
    ended 137 || return 1
    expect_lines "$((kills > 0))" '^resumed .* from models$'
  done
}
in_time two_kills
run "${nodes[@]}" -- --model-dir models --resume auto --checkpoint-every 3 --save killed.pt
expect_lines 1 '^resumed .* from models$'
cmp uninterrupted.pt killed.pt

echo "=== a node has lost its files"
# shellcheck disable=SC2016  # for each rank to expand
program=(bash -c 'exec "$@" --model-dir "node${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"' -- "$cifar10")
one_signal() {
  rm -rf node0 node1
  begin "${nodes[@]}" -- --checkpoint-per-node --resume auto
  some_steps && stop TERM "$job"
}
in_time one_signal
[[ -e node0/last/manifest.json && -e node1/last/manifest.json ]] || fail "a node has no checkpoint"
rm -r node0
run "${nodes[@]}" -- --checkpoint-per-node --resume auto --save per_node.pt
expect_lines 1 '^resumed (in epoch [1-9], after|after epoch [1-8])'
cmp uninterrupted.pt per_node.pt
[[ -e node0/last/manifest.json ]] || fail "node 0 has no checkpoint again"
program=("$cifar10")

echo "=== 2, 4, and 2 ranks"
two_and_four() {
  local place
  begin -np 2 -- --model-dir models
  some_steps && stop USR1 "$job" || return 1
  place=$(sed -n 's/^stopped by SIGUSR1 \(.*\); saved .*/\1/p' output)
  begin -np 4 -- --model-dir models --resume auto
  some_steps && stop USR1 "$job" || return 1
  expect_lines 1 "^resumed $place from models$"
}
in_time two_and_four
run -np 2 -- --model-dir models --resume auto
grep '^epoch' output
expect_lines 1 '^epoch 9/9: loss 0\.0'  # what was learnt is kept

echo "=== elastic: it goes on from memory"
one_loss() {
  begin --elastic "${nodes[@]}" -- --save elastic.pt
  some_steps || return 1
  kill -KILL "$(a_rank $((1 + RANDOM % 2)))" 2> /dev/null || true
  ended 0
  grep '^horarun: generation 2: rank [01] .* was killed by signal 9 (SIGKILL)' output
}
in_time one_loss
expect_lines 1 '^resumed .* from memory$'
cmp uninterrupted.pt elastic.pt

echo "=== nothing to save to, nothing to resume"
without_model_dir() {
  begin -np 2 --
  some_steps || return 1
  kill -USR1 "$job" 2> /dev/null || true
  ended 75
}
in_time without_model_dir
expect_lines 1 '^stopped by SIGUSR1 in epoch [1-9], .*; nothing was saved, for there is no --model-dir$'
mkdir empty
begin -np 2 -- --resume empty
ended 1
expect_lines 1 '^cifar10: --resume empty: there is no checkpoint'
echo "all as expected"
