#!/usr/bin/env bash
# Lists what tests may leave behind, one a line; nothing when all is well.
# Usage: leftovers.sh [BUILD TEMPORARY]
#   BUILD      a build folder: a process that runs a program from it is left over
#   TEMPORARY  the TMPDIR that the tests had to themselves: whatever is in it is left over, and so is
#              every process that inherited it (mpirun, its daemons, what holds an emulated host);
#              but for Open MPI's session folders: its mpirun can crash where a rank aborts while
#              another is in MPI_Finalize
# And in /dev/shm: semaphores, and what hora, horarun, Open MPI or MPICH made, where no process maps
# it or (a folder of horarun's) has it in its environment or its arguments. And System V's segments
# that no process has attached, and its semaphores.
set -euo pipefail

build='' temporary=''
(($# == 0)) || { build=$(realpath "$1") temporary=$2; }
for process in /proc/[0-9]*; do
  [[ -n $build ]] || break
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

uses=(/proc/[0-9]*/{maps,environ,cmdline})
for file in /dev/shm/{*hora*,vader_segment.*,sm_segment.*,osc_*,mpich_shar_tmp*,sem.*}; do
  [[ -e $file ]] || continue
  kind='shared memory'
  [[ $file != /dev/shm/sem.* ]] || kind=semaphore
  # A process of another user's job may still use it.
  if ! grep -qsaF --file=- "${uses[@]}" <<< "$file"; then
    echo "$kind $file"
  fi
done
# key shmid perms size cpid lpid nattch...; key semid perms nsems... A kernel may have neither.
if [[ -d /proc/sysvipc ]]; then
  awk 'FNR > 1 && $7 == 0 { print "System V segment " $2 }' /proc/sysvipc/shm
  awk 'FNR > 1 { print "System V semaphores " $2 }' /proc/sysvipc/sem
fi
