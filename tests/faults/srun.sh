#!/bin/bash
# In srun's place: writes its arguments down, one a line, and runs the command on a host of the
# node's name, with the variables of a step. Without --export=ALL the command has no environment.
folder=$(dirname "$0")
arguments=("$@")
node='' environment=(env -i)
while [[ ${1-} == --* ]]; do
  case $1 in
    --nodelist=*) node=${1#*=} ;;
    --export=ALL) environment=() ;;
    --nodes=1 | --ntasks=1 | --overlap | --cpu-bind=none | --mpi=none | --unbuffered) ;;
    --kill-on-bad-exit=0 | --input=0 | --quiet) ;;
    *)
      echo "srun: unrecognized option '$1'" >&2
      exit 1
      ;;
  esac
  shift
done
printf '%s\n' "${arguments[@]}" > "$folder/srun.$node"
if [[ $node == drained ]]; then
  echo "srun: error: Unable to create step for job 7: Requested nodes are not available" >&2
  exit 1
fi
export FAULTS_HOST=$node SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=1
export SLURM_STEP_NUM_TASKS=1 SLURM_STEP_TASKS_PER_NODE=1 SLURM_STEP_NODELIST=$node
exec setsid --wait "${environment[@]}" \
  unshare --uts /bin/sh -c 'hostname "$0" && exec "$@"' "$node" "$@"
