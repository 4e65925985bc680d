#!/usr/bin/env bash
# What an exception does to a job of two ranks: COMMAND must end by itself within SECONDS.
# Usage: abandoned_test.sh leaves|uncaught|goes_on CAUSE SECONDS COMMAND...
#   leaves, uncaught  it ends with an error, and every rank says the first cause: CAUSE
#   goes_on           every rank goes on, and ends without one
set -uo pipefail
who=$1 cause=$2 seconds=$3
shift 3
begin=$SECONDS
# What another rank has said is repeated at this level alone.
[[ $who != uncaught ]] || export HORA_LOG_LEVEL=info
output=$(timeout --kill-after=5 "$seconds" "$@" 2>&1)
code=$?
echo "$output" | tail -n 30
echo "exit code $code after $((SECONDS - begin)) s"

fail() {
  echo "$1"
  exit 1
}
said() {
  grep -q -e "$1" <<< "$output"
}

((code != 124 && code != 137)) || fail "it hung"
said "throwing now" || fail "it did not get that far"
! said "not reached" || fail "a rank went on alone, or nothing was thrown"
if [[ $who != uncaught ]]; then
  # A destructor that throws while the stack is unwound.
  ! said "uncaught exception" && ! said "std::terminate" && ! said "terminate called" ||
    fail "a rank was terminated"
fi

if [[ $who == goes_on ]]; then
  for rank in 0 1; do
    said "rank $rank went on" || fail "rank $rank did not go on"
  done
  ! said "ends the job" || fail "a rank ended the job"
  ((code == 0)) || fail "it ended with an error"
  exit 0
fi
said "thrown by the application" || fail "the reason is lost"
said "rank 0 (host .*) ends the job: " || fail "who threw is lost"
said "rank 0 (host .*) has ended the job: $cause" || fail "rank 1 does not know the first cause"
if [[ $who == leaves ]]; then
  said "rank 0 caught: thrown by the application" || fail "rank 0 caught something else"
  said "rank 1 caught: .*rank 0 (host .*) has ended the job: $cause" ||
    fail "rank 1 caught something else"
fi
((code != 0)) || fail "it ended as if nothing had happened"
