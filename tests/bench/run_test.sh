#!/usr/bin/env bash
# bench/run.sh from its options to its report, with mpirun replaced by a fake that writes results.
# Usage: run_test.sh ROOT
set -euo pipefail
root=$1
work=$(mktemp -d "${TMPDIR:-/tmp}/bench_run_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{tree/bench/{results,scale},tree/build/bench/training_step,bin}
cp -r "$root/bench/run.sh" "$root/bench/report" "$work/tree/bench/"
cp -r "$root/bench/scale/forecast" "$work/tree/bench/scale/"
printf '# hora\n<!-- performance begin -->\n<!-- performance end -->\n' > "$work/tree/README.md"
cat > "$work/bin/mpirun" << 'FAKE'
#!/bin/bash
[[ $1 != --version ]] || { echo "mpirun (Open MPI) 4"; exit; }
echo "HORA_RANKS_PER_NODE=$HORA_RANKS_PER_NODE $*" >> "$CALLS"
[[ ${FAIL:-} == "" || $* != *"$FAIL"* ]] || { echo "no memory"; exit 3; }
for argument; do
  [[ $argument != --benchmark_out=* ]] || out=${argument#*=}
done
echo '{"context": {"ranks": "2", "nodes": "1", "network": "tiny_layers"}, "benchmarks": []}' > "$out"
FAKE
touch "$work/tree/build/bench/training_step/training_step"
chmod +x "$work/bin/mpirun" "$work/tree/build/bench/training_step/training_step"
echo "MPIEXEC_EXECUTABLE:FILEPATH=$work/bin/mpirun" > "$work/tree/build/CMakeCache.txt"
export CALLS=$work/calls

fail() {
  cat "$work/output" "$work/calls"
  echo "FAILED: $*"
  exit 1
}
run() {
  : > "$CALLS"
  code=0
  PYTHONDONTWRITEBYTECODE=1 bash "$work/tree/bench/run.sh" --no-build --build build "$@" \
    > "$work/output" 2>&1 || code=$?
}
results=$work/tree/bench/results/run

run --only negotiation,allreduce_nodes
((code == 0)) || fail "two parts end with $code"
[[ -e $results/negotiation.json && -e $results/allreduce_nodes.json && -e $results/report.md ]] ||
  fail "two parts leave their files and a report"
(($(wc -l < "$CALLS") == 2)) || fail "two parts are two runs"
grep -q '^HORA_RANKS_PER_NODE= .*--bind-to none.*negotiation' "$CALLS" || fail "negotiation on one node"
grep -q '^HORA_RANKS_PER_NODE=1 .*allreduce_perf' "$CALLS" || fail "virtual nodes"
grep -q '1/2\].* negotiation.*: done' "$work/output" || fail "a line says how far it is"
grep -q '2 ranks' "$work/tree/README.md" || fail "the README's section is written"

run --only record
((code == 0)) || fail "the part record ends with $code"
[[ -e $results/record.json && -e $results/record_nodes.json ]] ||
  fail "the record's cost to a call, on one node and on two"
(($(grep -c 'negotiation.*--benchmark_filter=flight_record' "$CALLS") == 2)) ||
  fail "the part record runs negotiation twice"

run --only negotiation,tiny_layers --continue --quick
[[ $(< "$CALLS") == *training_step*tiny_layers* && $(wc -l < "$CALLS") == 1 ]] ||
  fail "--continue leaves out what is there"

FAIL=negotiation run --only negotiation,one_layer
((code == 1)) || fail "a part that fails gives exit code $code"
grep -q ' negotiation.*: FAILED' "$work/output" || fail "a part that fails is named"
grep -q 'no memory' "$work/output" || fail "with the program's words"
[[ -e $results/training_one_layer.json ]] || fail "the parts after it run"

for bad in "--only nothing" "--fast"; do
  # shellcheck disable=SC2086  # an option and its value
  run $bad
  ((code == 2)) || fail "$bad is refused (exit code $code)"
  [[ ! -s $CALLS ]] || fail "$bad runs nothing"
done
echo "bench/run.sh does what its options say"
