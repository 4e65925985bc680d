#!/usr/bin/env bash
# Elastic jobs of 4, then 3, 5 and 4 ranks on emulated hosts: whether each sample of each epoch is used once.
# Usage: elastic_samples.sh BUILD RUNS SEED      Exit code: 0 only where it is in each run.
set -euo pipefail
root=$(dirname "$(realpath "$0")")/../..
# shellcheck source-path=SCRIPTDIR source=../examples/cifar10/made_digits.sh
source "$root/tests/examples/cifar10/made_digits.sh"
build=$(realpath "$1") runs=$2 RANDOM=$3
begin_work elastic_samples
ln -s "$root/tests/faults/ssh.sh" ssh

hosts() { # the next hosts, with their slots
  printf '#!/bin/sh\necho %s | tr " " "\\n"\n' "$*" > next
  chmod 700 next
  mv next hosts.sh
}
goes_on() { # GENERATION RANKS
  local end=$((SECONDS + 30))
  until grep -q "^horarun: generation $1: .*; $2 ranks on .* go on at step" output; do
    if ! kill -0 "$job" 2> /dev/null || ((SECONDS > end)); then fail "generation $1 does not go on with $2 ranks"; fi
    sleep 0.02
  done
}
some_time() { sleep "0.$((RANDOM % 5 + 1))"; }

once=0
for ((run = 1; run <= runs; ++run)); do
  hosts 127.0.0.1:2 127.0.0.2:1 127.0.0.3:1
  HORARUN_SSH=$PWD/ssh "$build/core/launch/horarun" --no-prefix-output --binding none --min-np 2 \
    --host-discovery-script "$PWD/hosts.sh" --blacklist-cooldown-range 1 1 "$build/tests/faults/elastic_samples" 20 \
    < /dev/null > output 2>&1 &
  job=$!
  until [[ -n $(processes elastic_sample.*) ]]; do
    kill -0 "$job" 2> /dev/null || fail "run $run does not begin"
    sleep 0.05
  done
  sleep 1; some_time
  hosts 127.0.0.1:2 127.0.0.2:1
  goes_on 2 3; some_time
  hosts 127.0.0.1:2 127.0.0.2:1 127.0.0.4:2
  goes_on 3 5; some_time
  generation=4
  if ((RANDOM % 2)); then # a lost rank between
    mapfile -t ranks < <(processes elastic_sample.*)
    kill -KILL "${ranks[RANDOM % ${#ranks[@]}]}"
    goes_on 4 5; some_time
    generation=5
  fi
  hosts 127.0.0.1:2 127.0.0.4:2
  goes_on "$generation" 4
  wait "$job" || fail "run $run"
  job=
  if grep -q "^generation $generation: 20020 of 20020 samples were used once" output; then ((++once)); else cat output; fi
done
echo "each sample of each epoch was used once in $once of $runs runs of 4, 3, 5 and 4 ranks"
((once == runs))
