#!/usr/bin/env bash
# cmake/gpu_steps.sh: order, parts, times, what is kept of each step, and exit codes.
#
# Usage: gpu_steps_test.sh SOURCE_FOLDER
set -euo pipefail
cd "$1"
work=$(mktemp -d "${TMPDIR:-/tmp}/gpu_steps_test.XXXXXX")
trap 'rm -rf "$work"' EXIT
unset OUT GPU_PART GPU_ONLY GPU_BUDGET GPU_LINES
export OUT_FOLDER=$work/out STEPS=$work/steps.sh MACHINE=true
cat > "$work/script.sh" <<'END'
set -euo pipefail
source cmake/gpu_machine.sh
source cmake/gpu_steps.sh
hora_gpu_arguments "$OUT_FOLDER" "$@"
steps() { source "$STEPS"; }
case $hora_gpu_mode in
  list) hora_gpu_list ;;
  *) hora_gpu_run_steps "$MACHINE" ;;
esac
END

fail() {
  cat "$work/output" "$OUT_FOLDER"/part*/results.txt 2> /dev/null || true
  echo "FAILED: $*"
  exit 1
}
# run CODE ARGUMENT...: the steps of the standard input
run() {
  local wanted=$1 code=0
  shift
  cat > "$STEPS"
  bash "$work/script.sh" "$@" > "$work/output" 2>&1 || code=$?
  ((code == wanted)) || fail "exit code $code instead of $wanted"
}
says() { grep -qE -- "$1" "$work/output" || fail "it does not say '$1'"; }
# results PART LINE...: the table holds these and no others, but for seconds
results() {
  local file=$OUT_FOLDER/part$1/results.txt
  shift
  diff <(sed -E 's/ +[0-9]+ s +([0-9.]+) +/ \1 /; s/, [0-9]+ s$//' "$file") <(printf '%s\n' "$@") ||
    fail "another table"
}
# value PART/NUMBER KEY VALUE: of the step's JSON
value() {
  python3 - "$OUT_FOLDER"/part"$1"-*.json "$2" "$3" <<'END' || fail "wrong JSON of $1"
import json, sys
value = json.load(open(sys.argv[1]))[sys.argv[2]]
if value != json.loads(sys.argv[3]):
    sys.exit(f"{sys.argv[2]} is {value}")
END
}

# Later steps run after one that fails, and all is kept.
run 1 << 'END'
hora_gpu_part 1 "first"
hora_gpu_step 'says "figures"' 20 bash -c 'echo begin; echo "{\"ms\": 1.5}"; echo "{\"ms\": 2}"; echo "{half"'
hora_gpu_step "goes wrong" 20 bash -c 'echo why >&2; exit 3'
hora_gpu_step "has no GPU" 20 bash -c 'echo no GPU here; exit 77'
hora_gpu_step "is right" 20 true
END
results 1 'passed 1.01 machine and libraries' 'passed 1.02 says "figures"' \
  'failed 1.03 goes wrong: exit code 3' 'not run 1.04 has no GPU: no GPU here' \
  'passed 1.05 is right' 'Part 1: 3 passed, 1 failed, 1 not run'
value 1/02 name '"says \"figures\""'
value 1/02 figures '[{"ms": 1.5}, {"ms": 2}]'
value 1/02 result '"passed"'
value 1/03 exit_code 3
value 1/03 command '"bash -c echo why >&2; exit 3"'
grep -qx why "$OUT_FOLDER"/part1/03-goes-wrong.log || fail "no log of the failure"

# All passed; a step that had failed leaves nothing behind. Then some did not run.
run 0 <<< 'hora_gpu_part 1 "first"; hora_gpu_step "is right" 20 true'
results 1 'passed 1.01 machine and libraries' 'passed 1.02 is right' \
  'Part 1: 2 passed, 0 failed, 0 not run'
[[ ! -e $OUT_FOLDER/part1/03-goes-wrong.log ]] || fail "files of the run before are there"
run 77 <<< 'hora_gpu_part 1 "first"; hora_gpu_step "has no GPU" 20 bash -c "exit 77"'

# A step ends after its own time, with what it had said; the next one runs.
run 1 << 'END'
hora_gpu_part 1 "first"
hora_gpu_step "hangs" 1 bash -c 'echo before; sleep 100'
hora_gpu_step "is right" 20 true
END
results 1 'passed 1.01 machine and libraries' 'failed 1.02 hangs: not done after 1 s' \
  'passed 1.03 is right' 'Part 1: 2 passed, 1 failed, 0 not run'
grep -qx before "$OUT_FOLDER"/part1/02-hangs.log || fail "no log of what hung"

# A part's time is over: the rest of it is not run; the next part has its own time.
GPU_BUDGET=2 run 77 << 'END'
hora_gpu_part 1 "first"
hora_gpu_step "takes long" 50 sleep 100
hora_gpu_step "comes too late" 50 touch "$OUT_FOLDER/touched"
hora_gpu_part 2 "second"
hora_gpu_step "is right" 20 true
END
results 1 'passed 1.01 machine and libraries' \
  "not run 1.02 takes long: cut off: the part's time is over" \
  "not run 1.03 comes too late: the part's time is over" 'Part 1: 1 passed, 0 failed, 2 not run'
results 2 'passed 2.01 machine and libraries' 'passed 2.02 is right' \
  'Part 2: 2 passed, 0 failed, 0 not run'
[[ ! -e $OUT_FOLDER/touched ]] || fail "a step ran without time"
value 1/03 result '"not run"'

# One part alone; what another one has left stays. --list runs nothing.
three='hora_gpu_part 1 "first"; hora_gpu_step "a" 20 touch "$OUT/a"
hora_gpu_part 2 "second"; hora_gpu_step "b" 30 touch "$OUT/b"
hora_gpu_part 3 "third"; hora_gpu_step "c" 40 touch "$OUT/c"; hora_gpu_step "cc" 5 true'
run 0 --part 2 <<< "$three"
[[ ! -e $OUT_FOLDER/a && -e $OUT_FOLDER/b && ! -e $OUT_FOLDER/c ]] || fail "another part ran"
[[ -e $OUT_FOLDER/part1/results.txt ]] || fail "part 1's results are gone"
rm "$OUT_FOLDER/b"
run 0 --list <<< "$three"
[[ ! -e $OUT_FOLDER/b ]] || fail "--list runs steps"
[[ $(cat "$work/output") == "=== Part 1: first
  1.01    60 s  machine and libraries
  1.02    20 s  a
=== Part 2: second
  2.01    60 s  machine and libraries
  2.02    30 s  b
=== Part 3: third
  3.01    60 s  machine and libraries
  3.02    40 s  c
  3.03     5 s  cc" ]] || fail "another list"
run 0 --out "$work/elsewhere" --part 3 <<< "$three"
[[ -e $work/elsewhere/c && -e $work/elsewhere/part3/results.txt ]] || fail "--out has no effect"

# Chosen by name.
GPU_ONLY='^c+$' run 0 <<< "$three"
says '^passed +[0-9]+ s  3.02  c$'
says '^passed +[0-9]+ s  3.03  cc$'
[[ ! -e $OUT_FOLDER/a ]] || fail "a step ran that was not chosen"
GPU_ONLY=nothing run 1 <<< "$three"
says 'GPU_ONLY=nothing leaves no step'

# Where a library is missing nothing is started.
MACHINE=false run 1 <<< "$three"
[[ ! -e $OUT_FOLDER/a ]] || fail "a step ran without its libraries"
says '^not run +0 s  1.02  a: the machine lacks something'

# Ended from outside: the step ends, what there is is kept, and the table is complete. timeout lets
# its command go on where it is ended before it has noted which process that is: hence the pause.
long='hora_gpu_part 1 "first"
hora_gpu_step "is right" 20 true
hora_gpu_step "runs" 50 bash -c "sleep 0.5; echo \$\$ > \"$OUT_FOLDER/process\"; echo so far; exec sleep 100"
hora_gpu_step "comes later" 20 true
hora_gpu_part 2 "second"
hora_gpu_step "comes in another part" 20 true'
begin() {
  rm -f "$OUT_FOLDER/process"
  echo "$long" > "$STEPS"
  bash "$work/script.sh" > "$work/output" 2>&1 &
  script=$!
  for ((i = 0; i < 400; ++i)); do
    [[ -s $OUT_FOLDER/process ]] && return
    sleep 0.05
  done
  fail "the step does not begin"
}
begin
kill -TERM "$script"
code=0 since=$SECONDS
wait "$script" || code=$?
((SECONDS - since < 30)) || fail "the step's own time was waited for"
((code == 77)) || fail "exit code $code after a signal"
[[ ! -e /proc/$(cat "$OUT_FOLDER/process") ]] || fail "the step goes on"
results 1 'passed 1.01 machine and libraries' 'passed 1.02 is right' \
  'not run 1.03 runs: cut off: a signal ended the script' \
  'not run 1.04 comes later: a signal ended the script' 'Part 1: 2 passed, 0 failed, 2 not run'
says '2.02  comes in another part: a signal ended the script'
begin
kill -KILL "$script"
wait "$script" 2> /dev/null || true
kill "$(cat "$OUT_FOLDER/process")"
value 1/03 result '"running"'
grep -qx 'so far' "$OUT_FOLDER"/part1/03-runs.log || fail "no log of the step that ran"
grep -q 'is right' "$OUT_FOLDER"/part1/results.txt || fail "no results of the steps before"

# Arguments.
for wrong in '--part 4' '--part' '--out' '--fast' 'walk' 'pack' 'run a b'; do
  # shellcheck disable=SC2086  # several words
  run 2 $wrong <<< "$three"
  says 'see --help'
done
echo "all as expected"
