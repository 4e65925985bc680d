#!/usr/bin/env bash
# Lists what tests may leave behind, one a line; nothing when all is well.
# Usage: leftovers.sh BUILD TEMPORARY
#   BUILD      a build folder: a process that runs a program from it is left over
#   TEMPORARY  the TMPDIR that the tests had to themselves: whatever is in it is left over, and so is
#              every process that inherited it (mpirun, its daemons, what holds an emulated host);
#              but for Open MPI's session folders: its mpirun can crash where a rank aborts while
#              another is in MPI_Finalize
# And in /dev/shm: what hora, horarun or Open MPI made and no process maps or (a folder of horarun's)
# has in its environment or its arguments.
set -euo pipefail
build=$(realpath "$1") temporary=$2

for process in /proc/[0-9]*; do
  number=${process#/proc/}
  [[ $number != "$$" ]] || continue
  program=$(readlink "$process/exe" 2> /dev/null || true)
  if [[ $program == "$build/"* ]] ||
    grep -qzF "TMPDIR=$temporary" "$process/environ" 2> /dev/null; then
    echo "process $number: $program"
  fi
done

if [[ -d $temporary ]]; then
  find "$temporary" -mindepth 1 -maxdepth 1 -not -name 'ompi.*' -printf 'temporary file %p\n'
fi

for file in /dev/shm/*hora* /dev/shm/vader_segment.* /dev/shm/osc_rdma.*; do
  [[ -e $file ]] || continue
  # A process of another user's job may still use it.
  if ! cat /proc/[0-9]*/{maps,environ,cmdline} 2> /dev/null | grep -qaF "$file"; then
    echo "shared memory $file"
  fi
done
