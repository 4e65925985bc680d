#!/usr/bin/env bash
# Exit codes, messages and times of fault_program under mpirun.
# Usage: faults_test.sh GROUP[,GROUP...] PROGRAM MPIEXEC [ARGUMENTS OF MPIEXEC...]
#   GROUP  overdue_new, overdue_known, crossed, exceptions, settings, init, leaving, forking, timeout
#          or cut_broadcast
# Of the ways in which a rank fails, ranks, and nodes, each pair is run, not each triple.
set -uo pipefail
group=$1 program=$2
shift 2
if [[ $group == *,* ]]; then
  failed=0
  for each in ${group//,/ }; do
    "$0" "$each" "$program" "$@" || failed=1
  done
  exit "$failed"
fi
mpi=("$@")
failures=0
output='' code=0 seconds=0

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# run COMMAND...: into output, code and seconds; 30 s stand for "it hangs". Where a rank aborts while
# another is in MPI_Finalize, Open MPI 4's mpirun can crash, or wait for itself when all ranks have
# ended (in PMIx_server_finalize): it is ended then, which counts as an error of the job.
run() {
  local begin=$SECONDS job launcher had_ranks=false without=0
  TMPDIR=$folder timeout --kill-after=5 30 "$@" > "$folder/output" 2>&1 &
  job=$!
  while kill -0 "$job" 2> /dev/null; do
    launcher=$(pgrep -P "$job" | head -n 1)
    if [[ -n $launcher ]] && ps -o stat= --ppid "$launcher" | grep -q '^[^Z]'; then
      had_ranks=true without=0
    elif $had_ranks && ((++without > 30)) && kill -KILL "${launcher:-none}" 2> /dev/null; then
      echo "mpirun went on without ranks"
      break
    fi
    sleep 0.1
  done
  wait "$job" 2> /dev/null
  code=$?
  ((without <= 30)) || code=1
  output=$(< "$folder/output")
  seconds=$((SECONDS - begin))
}

failed() {
  echo "$1; exit code $code after $seconds s, output:"
  echo "$output"
  failures=$((failures + 1))
}

# expect NAME zero|nonzero [TEXT...]: every text must be in the output.
expect() {
  local name=$1 wanted=$2 text before=$failures
  shift 2
  case $wanted in
    zero) ((code == 0)) || failed "$name: should succeed" ;;
    nonzero)
      ((code != 0 && code != 124 && code != 137)) || failed "$name: should fail by itself"
      ;;
  esac
  for text in "$@"; do
    [[ $output == *"$text"* ]] || failed "$name: no '$text'"
  done
  ((failures == before)) && echo "$name: ok"
}

# never NAME TEXT
never() {
  [[ $output != *"$2"* ]] || failed "$1: '$2' should not be there"
}

# within NAME SECONDS
within() {
  ((seconds <= $2)) || failed "$1: took longer than $2 s"
}

# overdue NAME RANKS RANKS_PER_NODE KNOWN TEXT LATE_RANKS: the warning must say TEXT
overdue() {
  local name=$1 ranks=$2 per_node=$3 known=$4 text=$5 late=$6
  run env HORA_STALL_WARNING=300ms HORA_RANKS_PER_NODE="$per_node" \
    "${mpi[@]}" "$ranks" "$program" late "$known" 2500 "$late"
  expect "$name" zero "tensor \"late\" is waited for by $text"
}

case $group in
  overdue_new | overdue_known)
    known=$([[ $group == overdue_new ]] && echo 0 || echo 2)
    if [[ $known == 0 ]]; then
      overdue "one node" 4 0 "$known" \
        "ranks 0, 2, 3 and has not been submitted by ranks 1." 1
      overdue "two nodes, all of the root's" 4 2 "$known" \
        "ranks 2, 3 and has not been submitted by ranks 0, 1" 0,1
    else
      overdue "two nodes, a rank of the other node" 4 2 "$known" \
        "ranks 0-2 and has not been submitted by ranks 3." 3
    fi
    overdue "one rank a node" 4 1 "$known" \
      "ranks 0, 2 and has not been submitted by ranks 1, 3" 1,3
    ;;
  crossed)
    for per_node in 0 2; do
      name="crossed sets, ranks per node $per_node"
      run env HORA_STALL_WARNING=300ms HORA_RANKS_PER_NODE=$per_node "${mpi[@]}" 3 \
        "$program" crossed 2500
      expect "$name" zero \
        'tensor "x" is waited for by ranks 1, 2 and has not been submitted by ranks 0' \
        'has last submitted tensor "x" of process set 1, ' \
        'tensor "x" of process set 1 is waited for by ranks 0 and has not been submitted by ' \
        'has last submitted tensor "x", ' \
        'rank 0: right' 'rank 1: right' 'rank 2: right'
    done
    ;;
  exceptions)
    declare -A said=(
      [throw-caught]="caught: the application's own error"
      [throw-silent]="leaving the scope of hora's context: an error of hora's"
      [throw-goes-on]="caught: the application's own error"
      [throw-uncaught]="of type std::runtime_error: the application's own error")
    thrower=0
    for mode in throw-caught throw-silent throw-goes-on throw-uncaught; do
      for per_node in 0 1; do
        name="$mode on rank $thrower, ranks per node $per_node"
        run env HORA_RANKS_PER_NODE=$per_node "${mpi[@]}" 2 "$program" $mode $thrower
        expect "$name" nonzero "${said[$mode]}" \
          "hora critical: rank $thrower (host $(hostname), pid "
        within "$name" 20
        never "$name" "third is complete"
        thrower=$((1 - thrower))
      done
      [[ $mode != throw-silent ]] || thrower=1
    done
    name="all throw and catch in the context's scope"
    run env HORA_RANKS_PER_NODE=2 "${mpi[@]}" 3 "$program" throw-inside
    expect "$name" zero "rank 0: went on" "rank 1: went on" "rank 2: went on"
    within "$name" 20
    never "$name" "hora "
    # All ranks of all nodes end with the thrower's own text, of which they say nothing else.
    for at in 0:3 2:0 2:3 1:0; do
      per_node=${at%:*} thrower=${at#*:}
      name="all know why rank $thrower has thrown, ranks per node $per_node"
      run env HORA_RANKS_PER_NODE="$per_node" HORA_LOG_LEVEL=info "${mpi[@]}" 4 "$program" \
        throw-uncaught "$thrower"
      expect "$name" nonzero
      within "$name" 20
      for ((rank = 0; rank < 4; ++rank)); do
        ((rank != thrower)) || continue
        grep -q "rank $rank (host .*hora::Error: rank $thrower (host .*) has ended the job: uncaught \
exception of type std::runtime_error: the application's own error" <<< "$output" ||
          failed "$name: rank $rank does not"
        never "$name" "hora critical: rank $rank "
      done
    done
    ;;
  settings)
    colon=("${mpi[@]}" 1 env HORA_FUSION_THRESHOLD=1MiB "$program" init : -np 1
      env HORA_FUSION_THRESHOLD=2MiB "$program" init)
    run "${colon[@]}"
    expect "another value on rank 1" nonzero \
      "invalid_setting: HORA_FUSION_THRESHOLD is 2MiB on rank 1 but 1MiB on rank 0"
    count=$(grep -o 'invalid_setting: HORA_FUSION_THRESHOLD' <<< "$output" | wc -l)
    ((count == 2)) || failed "another value on rank 1: told by $count of 2 ranks"
    never "another value on rank 1" started

    run "${mpi[@]}" 1 "$program" init : -np 1 env HORA_FUSION_TRESHOLD=1 "$program" init
    expect "an unknown name on rank 1" nonzero \
      "invalid_setting: rank 1: HORA_FUSION_TRESHOLD=\"1\"" "did you mean HORA_FUSION_THRESHOLD"
    count=$(grep -o 'invalid_setting: rank 1: HORA_FUSION_TRESHOLD' <<< "$output" | wc -l)
    ((count == 2)) || failed "an unknown name on rank 1: told by $count of 2 ranks"

    run env HORA_SPIN=$'1\n[00:00:00.000] hora critical: forged\e[2J' "${mpi[@]}" 2 "$program" init
    expect "a value that forges a line" nonzero \
      'HORA_SPIN="1\n[00:00:00.000] hora critical: forged\x1b[2J": unknown suffix'
    never "a value that forges a line" $'\n[00:00:00.000]'

    run env HORA_ROOT=/opt/hora HORA_VERSION=1 "${mpi[@]}" 2 "$program" init
    expect "names that module systems set" zero "rank 0: started" "rank 1: started"

    run "${mpi[@]}" 1 env HORA_ALLOW_UNKNOWN=HORA_OURS "$program" init : \
      -np 1 env HORA_OURS=$'1\nHORA_SPIN=1s' "$program" init
    expect "a name that rank 0 allows" zero "rank 1: started"

    run "${mpi[@]}" 1 env HORA_SPIN=10us "$program" init : -np 1 "$program" init
    expect "a value on rank 0 alone" zero "rank 1: started"
    ;;
  init)
    run env HORA_STALL_WARNING=300ms "${mpi[@]}" 3 "$program" init-late 1000
    expect "a rank comes late" zero "waits in hora::init for ranks 1 of MPI_COMM_WORLD, which" \
      "rank 1: started"

    name="a rank has returned before init"
    run env HORA_STALL_WARNING=300ms HORA_INIT_TIMEOUT=1s "${mpi[@]}" 3 "$program" init-late
    expect "$name" nonzero "waits in hora::init for ranks 1 of MPI_COMM_WORLD, which" \
      "transport: hora::init: ranks 1 of MPI_COMM_WORLD have not called it within 1000 ms"
    never "$name" started
    within "$name" 20
    name="the lowest rank has returned before init"
    run env HORA_STALL_WARNING=300ms HORA_INIT_TIMEOUT=1s "${mpi[@]}" 2 "$program" init-lists 1 0,1
    expect "$name" nonzero "hora::init: rank 0 of MPI_COMM_WORLD is not in InitOptions::ranks" \
      "ranks 0 of MPI_COMM_WORLD have not called it within 1000 ms"
    within "$name" 20

    for lists in "0,1,2 0,1 0,1,2" "0,1,2 0,1,2 1,2" "0,1,2 0,1 0,2"; do
      name="lists $lists"
      run "${mpi[@]}" 3 "$program" init-lists $lists
      expect "$name" nonzero "mismatch: hora::init: rank " "for ranks 0-2" \
        "rank 0: started" "rank 1: started" "rank 2: started"
      within "$name" 20
      count=$(grep -o 'mismatch: hora::init' <<< "$output" | wc -l)
      ((count == 3)) || failed "$name: told by $count of 3 ranks"
    done

    name="MPI_Finalize while hora runs"
    run "${mpi[@]}" 2 "$program" finalize
    expect "$name" nonzero "rank 1 (host " \
      "calls MPI_Finalize while hora runs (call Context::shutdown() first)"
    never "$name" "no error"
    within "$name" 20
    ;;
  leaving)
    for per_node in 0 1; do
      for fate in kept dropped failed; do
        [[ $per_node:$fate != 0:dropped ]] || continue
        name="a collective that never completes, $fate, ranks per node $per_node"
        run env HORA_RANKS_PER_NODE=$per_node "${mpi[@]}" 2 "$program" never-completes $fate
        expect "$name" nonzero 'tensor "own"' "called shutdown()"
        never "$name" "rank 0: end of main"
        within "$name" 20
      done
      name="a collective that never completes, and whose error was caught"
      run env HORA_RANKS_PER_NODE=$per_node "${mpi[@]}" 2 "$program" never-completes waited
      expect "$name" zero "rank 0: end of main"
      exit_code=$((3 * per_node))
      name="exit($exit_code) without shutdown, ranks per node $per_node"
      run env HORA_RANKS_PER_NODE=$per_node "${mpi[@]}" 2 "$program" exit $exit_code
      expect "$name" nonzero "rank 1 (host $(hostname), pid " "exits without Context::shutdown()"
      never "$name" "no error"
      within "$name" 20
    done
    ;;
  forking)
    for per_node in 0 1; do
      name="a forked child that exits, ranks per node $per_node"
      # The child leaves its parent's memory behind, which is no leak.
      run env HORA_RANKS_PER_NODE=$per_node \
        ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" "${mpi[@]}" 2 "$program" fork
      expect "$name" zero "the child's exit code is 7" "rank 0: went on" "rank 1: went on" \
        "submit in the child: invalid_use" "wait in the child: invalid_use" \
        "buffer in the child: invalid_use" "shutdown in the child: invalid_use"
      never "$name" "exits without Context::shutdown()"
    done
    ;;
  timeout)
    # By the setting, and by the call alone.
    for own in 0 500; do
      per_node=$((own == 0))
      name="a rank stops submitting, timeout of the call $own ms, ranks per node $per_node"
      rm -rf "$folder/records"
      of_all=$([[ $own == 0 ]] && echo 500ms || echo 0)
      run env HORA_TIMEOUT="$of_all" HORA_RANKS_PER_NODE=$per_node \
        HORA_RECORD_DIRECTORY="$folder/records" "${mpi[@]}" 2 "$program" stops-submitting "$own"
      record=$folder/records/hora-record.0.json
      if [[ $(stat -c %a "$record") != 600 ]] || ! grep -q '"cause":{"text":".*tensor \\"g' "$record" ||
        ! grep -q '"name":"g",.*"outcome":"open"' "$record"; then
        failed "$name: $record should say what rank 0 did"
      fi
      expect "$name" nonzero 'tensor "g" '
      if [[ $per_node == 0 ]]; then
        expect "$name, who" nonzero "timeout: rank 1 (host " \
          ') did not come to tensor "g" within 500 ms of rank 0; it is '
      fi
      never "$name" "no error"
      within "$name" 20
    done
    name="a rank returns from main after an error"
    run "${mpi[@]}" 2 "$program" returns-early
    expect "$name" nonzero 'ends the job: in shutdown(), after an error: rank 1 (host ' \
      ') did not come to tensor "g" within 500 ms of rank 0; it is '
    ;;
  cut_broadcast)
    # What a stopped root has begun to send: Open MPI's shared memory is read without its help, over
    # TCP the rest of a message cannot come. Either way no call has failed while it may still come.
    for transport in '' self,tcp; do
      name="a root is stopped during its broadcast, transport ${transport:-as installed}"
      # shellcheck disable=SC2086
      run env HORA_TIMEOUT=1s HORA_RANKS_PER_NODE=1 OMPI_MCA_btl_tcp_if_include=lo \
        ${transport:+OMPI_MCA_btl=$transport} "${mpi[@]}" 2 "$program" cut-broadcast
      expect "$name" nonzero
      never "$name" "no error"
      never "$name" "the memory is written to"
      [[ $output == *"the memory is left alone"* || $output == *"after the call has returned"* ]] ||
        failed "$name: neither an error nor the end of the job"
      within "$name" 20
    done
    ;;
  *)
    echo "unknown group $group"
    exit 2
    ;;
esac
((failures == 0))
