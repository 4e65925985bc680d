#!/usr/bin/env bash
# Passes where COMMAND ends by itself, within SECONDS, with an error, and says why.
# Usage: abandoned_test.sh SECONDS COMMAND...
set -uo pipefail
seconds=$1
shift
begin=$SECONDS
output=$(timeout --kill-after=5 "$seconds" "$@" 2>&1)
code=$?
echo "$output" | tail -n 30
echo "exit code $code after $((SECONDS - begin)) s"
if ((code == 124 || code == 137)); then
  echo "it hung"
  exit 1
fi
grep -q "throwing now" <<< "$output" || { echo "it did not get that far"; exit 1; }
grep -q "thrown by the application" <<< "$output" || { echo "the reason is lost"; exit 1; }
! grep -q "not reached" <<< "$output" || { echo "a rank went on alone"; exit 1; }
((code != 0)) || { echo "it ended as if nothing had happened"; exit 1; }
