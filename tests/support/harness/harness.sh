#!/usr/bin/env bash
# COMMAND... runs a program that brings the tests named below; checks exit codes and output.
set -euo pipefail
command=("$@")
output=

# expect EXIT_CODE FILTER [TEXT]: the run must end with this code and print TEXT.
expect() {
  local code=0
  output=$("${command[@]}" --gtest_filter="$2" 2>&1) || code=$?
  if [[ $code != "$1" || $output != *"${3:-}"* ]]; then
    echo "filter $2: exit code $code, expected $1${3:+, and the text '$3'}; output:"
    echo "$output"
    exit 1
  fi
}

expect 0 Harness.Passes "Repeat with TEST_SEED="
TEST_SEED=17 expect 0 Harness.Passes "Repeat with TEST_SEED=17"
TEST_SEED=-1 expect 1 Harness.Passes "expected an unsigned decimal number"
expect 1 Harness.Fails "as it should"
expect 1 'Harness.Passes:Harness.Fails'
expect 77 Harness.Skipped
expect 0 'Harness.Passes:Harness.Skipped'
expect 1 Harness.NoSuchTest "No test ran"
if [[ ${command[*]} == *harness_mpi_program ]]; then
  expect 1 Harness.Fails "[rank 1] Harness.Fails"
  expect 1 Harness.Fails "The test failed on another rank"
  expect 1 Harness.SkippedOnOneRank
fi
