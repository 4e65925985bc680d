#!/usr/bin/env bash
# Fails unless COMMAND ends with an exit code other than 0, not by timeout's 124, and says REASON.
# Usage: job_ends_with_reason.sh REASON COMMAND...
set -uo pipefail
reason=$1
shift
code=0
output=$("$@" 2>&1) || code=$?
echo "$output"
if ((code == 0 || code == 124 || code == 137)); then
  echo "exit code $code, expected that of a job that has failed"
  exit 1
fi
if ! grep -qF -- "$reason" <<< "$output"; then
  echo "the output has no \"$reason\""
  exit 1
fi
