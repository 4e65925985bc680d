#!/usr/bin/env bash
# MPI's start and end in a process: exit codes and messages of environment_program.
# Usage: environment_test.sh PROGRAM MPIEXEC [ARGUMENTS OF MPIEXEC...]
set -uo pipefail
program=$1
shift
failures=0

# expect NAME EXIT_CODE TEXT COMMAND...
expect() {
  local name=$1 code=$2 text=$3 output actual
  shift 3
  output=$(timeout --kill-after=5 30 "$@" 2>&1)
  actual=$?
  if [[ $actual != "$code" || $output != *"$text"* ]]; then
    echo "$name: exit code $actual, expected $code, with the text '$text' in:"
    echo "$output"
    failures=$((failures + 1))
  else
    echo "$name: ok"
  fi
}

# mpirun exits with an error where a rank leaves without MPI_Finalize: 0 says that it was called.
expect "three times in one process" 0 "done" "$@" 2 "$program" start-and-stop
expect "the application's MPI" 0 multiple=1 "$@" 2 "$program" application-multiple
expect "too low a thread level" 0 "MPI offers MPI_THREAD_FUNNELED" \
  "$@" 1 "$program" application-funneled
expect "after MPI_Finalize" 0 "MPI is finalised" "$@" 1 "$program" after-finalize
# What exits, forks and MPI_Finalize while hora runs do: conformance_faults_*.
# Open MPI sometimes loses its own message about MPI_ABORT; the code is what counts.
expect "abort" 7 "" "$@" 2 "$program" abort
expect "no launcher" 0 "done" env OMPI_MCA_ess_singleton_isolated=1 "$program" start
# The variable of a launcher that this program's MPI takes no notice of.
others=PMI_SIZE
"$program" library | grep -q MPICH && others=OMPI_COMM_WORLD_SIZE
expect "another library's launcher" 3 "$others=2" \
  env OMPI_MCA_ess_singleton_isolated=1 $others=2 "$program" start
((failures == 0))
