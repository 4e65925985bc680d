# shellcheck shell=bash
# Steps on a machine with a GPU, in parts that each fit into a limited time; sourced by tests/gpu.sh
# and bench/gpu.sh, each of which has a function `steps` of
#
#   hora_gpu_part NUMBER TITLE           what follows belongs to it
#   hora_gpu_step NAME SECONDS COMMAND   a step, ended after that time
#
# and calls hora_gpu_list, which prints them, or hora_gpu_run_steps, whose status is the exit code:
# 0 where all ran and passed, 1 where one failed, else 77. hora_gpu_arguments reads what both scripts
# are called with.
#
# A part has GPU_BUDGET seconds [525: with a last step's ending below nine minutes]; steps for which
# none are left are not run. Of each step there are, from its beginning on,
#
#   $OUT/partP/NN-NAME.log    what it printed
#   $OUT/partP/NN-NAME.json   name, command, result (running, passed, failed, not run), reason, exit
#                             code, seconds, and as `figures` the lines of the log that are objects
#   $OUT/partP/results.txt    a line for each step that has ended; in the end one for every step
#
# GPU_PART is the only part to run [all], GPU_ONLY an extended regular expression of the steps.

hora_gpu_listing=0   # steps are printed, not run
hora_gpu_current=''  # part; empty where it is not wanted
hora_gpu_show_machine=()
hora_gpu_child=0     # process of the step that runs
hora_gpu_ended=''    # why no more steps are run
hora_gpu_passed=0 hora_gpu_failed=0 hora_gpu_not_run=0
hora_gpu_asked=0  # steps that were to run, but for those that show the machine

hora_gpu_misused() { echo "$(basename "$0"): $*; see --help" >&2; exit 2; }

# hora_gpu_arguments FOLDER ARGUMENT...: sets hora_gpu_mode (run, pack, list, help, or own: a function
# of the script as a command, for a step), `folder`, hora_gpu_own, GPU_PART and OUT [FOLDER].
hora_gpu_arguments() {
  local default=$1 words=0
  shift
  hora_gpu_mode=run folder=''
  while (($# > 0)); do
    case $1 in
      -h | --help) hora_gpu_mode=help ;;
      --list) hora_gpu_mode=list ;;
      --part)
        [[ ${2:-} =~ ^[1-3]$ ]] || hora_gpu_misused "--part needs 1, 2 or 3"
        GPU_PART=$2
        shift
        ;;
      --out)
        [[ -n ${2:-} ]] || hora_gpu_misused "--out needs a folder"
        OUT=$2
        shift
        ;;
      -*) hora_gpu_misused "unknown option $1" ;;
      own)
        # shellcheck disable=SC2034  # the scripts run it
        hora_gpu_mode=own hora_gpu_own=("${@:2}")
        break
        ;;
      *)
        words=$((words + 1))
        case $words,$1 in
          1,run) ;;
          1,pack) hora_gpu_mode=pack ;;
          1,*) hora_gpu_misused "unknown mode $1" ;;
          2,*) folder=$(realpath -m -- "$1") ;;
          *) hora_gpu_misused "$1 is one argument too many" ;;
        esac
        ;;
    esac
    shift
  done
  [[ $hora_gpu_mode != pack || -n $folder ]] || hora_gpu_misused "pack needs a folder"
  OUT=$(realpath -m -- "${OUT:-$default}")
  export OUT
}

hora_gpu_json_text() {
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  printf '"%s"' "${text//[[:cntrl:]]/ }"
}

# hora_gpu_note FILE NAME RESULT REASON CODE SECONDS COMMAND...: FILE.json, complete at any time.
hora_gpu_note() {
  local file=$1 name=$2 result=$3 reason=$4 code=$5 seconds=$6 figures=''
  shift 6
  [[ ! -e $file.log ]] || figures=$(grep -a '^{".*}$' "$file.log" | paste -sd ,) || true
  printf '{"part": %d, "name": %s, "result": %s, "reason": %s, "exit_code": %s, "seconds": %d, "command": %s, "figures": [%s]}\n' \
    "$hora_gpu_current" "$(hora_gpu_json_text "$name")" "$(hora_gpu_json_text "$result")" \
    "$(hora_gpu_json_text "$reason")" "$code" "$seconds" "$(hora_gpu_json_text "$*")" "$figures" \
    > "$file.json.new"
  mv "$file.json.new" "$file.json"
}

# Ends the part before.
hora_gpu_part() {
  hora_gpu_part_end
  hora_gpu_current='' hora_gpu_number=0
  [[ -z ${GPU_PART:-} || $GPU_PART == "$1" ]] || return 0
  hora_gpu_current=$1
  echo "=== Part $1: $2"
  if ((hora_gpu_listing)); then
    hora_gpu_machine_step
    return
  fi
  hora_gpu_folder=$OUT/part$1
  mkdir -p "$hora_gpu_folder"
  rm -f "$hora_gpu_folder"/[0-9][0-9]-*.{log,json} "$hora_gpu_folder/results.txt"
  : > "$hora_gpu_folder/results.txt"
  hora_gpu_end=$((SECONDS + ${GPU_BUDGET:-525}))
  hora_gpu_begin=$SECONDS
  [[ $hora_gpu_ended == 'a signal'* ]] || hora_gpu_ended=''
  hora_gpu_before=("$hora_gpu_passed" "$hora_gpu_failed" "$hora_gpu_not_run")
  hora_gpu_machine_step
}

# What the programs of this part run on; without their libraries none is started.
hora_gpu_machine_step() {
  local failed=$hora_gpu_failed GPU_ONLY='' GPU_LINES=30
  hora_gpu_step "machine and libraries" 60 "${hora_gpu_show_machine[@]}"
  hora_gpu_asked=$((hora_gpu_asked - 1))
  ((hora_gpu_failed == failed)) || hora_gpu_ended="the machine lacks something: see its first step"
}

# The step's time is at most what the part has left. A signal to the script ends the step, too.
hora_gpu_step() {
  local name=$1 seconds=$2 limit file code=0 begin
  shift 2
  [[ -n $hora_gpu_current ]] || return 0
  [[ -z ${GPU_ONLY:-} || $name =~ $GPU_ONLY ]] || return 0
  hora_gpu_number=$((hora_gpu_number + 1)) hora_gpu_asked=$((hora_gpu_asked + 1))
  if ((hora_gpu_listing)); then
    printf '  %d.%02d  %4d s  %s\n' "$hora_gpu_current" "$hora_gpu_number" "$seconds" "$name"
    return
  fi
  file=${name//[^A-Za-z0-9.]/-}
  file=$hora_gpu_folder/$(printf '%02d' "$hora_gpu_number")-$(tr -s '-' <<< "$file")
  limit=$((hora_gpu_end - SECONDS))
  ((limit > 0)) || hora_gpu_ended=${hora_gpu_ended:-"the part's time is over"}
  if [[ -n $hora_gpu_ended ]]; then
    hora_gpu_note "$file" "$name" 'not run' "$hora_gpu_ended" null 0 "$@"
    hora_gpu_verdict 'not run' 0 "$name" "$hora_gpu_ended"
    return
  fi
  limit=$((limit < seconds ? limit : seconds))
  begin=$SECONDS
  echo "--- $name (at most $limit s)"
  hora_gpu_note "$file" "$name" running '' null 0 "$@"
  timeout --kill-after=10 "$limit" "$@" < /dev/null > "$file.log" 2>&1 &
  hora_gpu_child=$!
  wait "$hora_gpu_child" || code=$?
  # A signal to the script interrupts the first wait.
  while kill -0 "$hora_gpu_child" 2> /dev/null; do
    code=0
    wait "$hora_gpu_child" || code=$?
  done
  hora_gpu_child=0
  tail -n "${GPU_LINES:-12}" "$file.log"
  hora_gpu_judge "$file" "$name" "$code" $((SECONDS - begin)) "$limit" "$seconds" "$@"
}

# hora_gpu_judge FILE NAME CODE SECONDS LIMIT OWN_LIMIT COMMAND...
hora_gpu_judge() {
  local file=$1 name=$2 code=$3 taken=$4 limit=$5 own=$6 result=failed reason
  shift 6
  if [[ $hora_gpu_ended == 'a signal'* ]]; then
    result='not run' reason="cut off: $hora_gpu_ended"
  elif ((code == 124 || (code == 137 && taken >= limit))); then
    # Nobody knows what a step would have become that had less than its own time.
    if ((limit < own)); then
      result='not run' reason="cut off: the part's time is over"
    else
      reason="not done after $limit s"
    fi
  elif ((code == 77)); then
    result='not run'
    reason=$(grep -aom 1 -E 'no GPU here|not run: .*|no (data|compute-sanitizer).*' "$file.log") ||
      reason='it says so (77)'
  elif ((code == 0)); then
    result=passed reason=''
  else
    reason="exit code $code"
  fi
  hora_gpu_note "$file" "$name" "$result" "$reason" "$code" "$taken" "$@"
  hora_gpu_verdict "$result" "$taken" "$name" "$reason"
}

# hora_gpu_verdict RESULT SECONDS NAME REASON
hora_gpu_verdict() {
  case $1 in
    passed) hora_gpu_passed=$((hora_gpu_passed + 1)) ;;
    failed) hora_gpu_failed=$((hora_gpu_failed + 1)) ;;
    *) hora_gpu_not_run=$((hora_gpu_not_run + 1)) ;;
  esac
  printf '%-8s %4d s  %d.%02d  %s%s\n' "$1" "$2" "$hora_gpu_current" "$hora_gpu_number" "$3" \
    "${4:+: $4}" >> "$hora_gpu_folder/results.txt"
}

# Prints the part's table.
hora_gpu_part_end() {
  [[ -n $hora_gpu_current ]] && ((!hora_gpu_listing)) || return 0
  printf 'Part %d: %d passed, %d failed, %d not run, %d s\n' "$hora_gpu_current" \
    $((hora_gpu_passed - hora_gpu_before[0])) $((hora_gpu_failed - hora_gpu_before[1])) \
    $((hora_gpu_not_run - hora_gpu_before[2])) $((SECONDS - hora_gpu_begin)) \
    >> "$hora_gpu_folder/results.txt"
  echo "=== Results, and logs in $hora_gpu_folder"
  cat "$hora_gpu_folder/results.txt"
}

# hora_gpu_list: prints what `steps` names, each with its longest time.
hora_gpu_list() {
  hora_gpu_listing=1
  steps
}

# hora_gpu_run_steps COMMAND...: COMMAND shows the machine, and fails where it lacks something.
hora_gpu_run_steps() {
  hora_gpu_show_machine=("$@")
  trap 'hora_gpu_ended="a signal ended the script"
    ((hora_gpu_child == 0)) || kill -TERM "$hora_gpu_child" 2> /dev/null || true' TERM INT HUP
  steps
  hora_gpu_part_end
  hora_gpu_current=''
  ((hora_gpu_asked > 0)) || hora_gpu_stop "GPU_ONLY=${GPU_ONLY:-} leaves no step"
  ((hora_gpu_failed == 0)) || return 1
  ((hora_gpu_not_run == 0)) || return 77
}
