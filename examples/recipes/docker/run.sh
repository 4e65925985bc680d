#!/usr/bin/env bash
# Training in two containers, one on each of two machines, without ssh between them: this script is
# started on both, and the containers meet at the first machine's address.
#
#     docker build ...                                      # once: see Dockerfile beside this file
#     export HORARUN_TOKEN=$(openssl rand -hex 16)          # the same secret on both machines
#     examples/recipes/docker/run.sh 0 10.0.0.5 /srv/data/digits --epochs 4     # on 10.0.0.5
#     examples/recipes/docker/run.sh 1 10.0.0.5 /srv/data/digits --epochs 4     # on the other
#
# Both may as well run on one machine, to try it. Data lie on both machines under the path that is
# given. RANKS is the number of ranks of a container [default: 1], TRAINER the program [default:
# cifar10], IMAGE the image [default: hora], DOCKER_OPTIONS what else docker gets: "--gpus all", or
# "--device /dev/infiniband --ulimit memlock=-1".
#
# --network host: MPI opens ports of its own choice between the machines. A firewall between them lets
#   the other machine in on all ports. With a bridge network both containers must be on the same one.
# --shm-size: the ranks of a container share memory in /dev/shm; docker's own 64 MiB are too few.
#   Each rank takes about three times the size of the model.
# --hostname: nodes are told apart by their names.
# --stop-signal: with `--model-dir /models --resume auto`, `docker stop hora-node0` lets all ranks save
#   a checkpoint and leave, within --stop-timeout.
#
# Tried: two containers on one machine, under Debian 12's docker.io (20.10), which found each other at
# 127.0.0.1 and trained an epoch. Not tried: two machines, GPUs.
set -euo pipefail
if (($# < 3)) || [[ ! $1 =~ ^[01]$ ]]; then
  echo "Usage: run.sh 0|1 ADDRESS_OF_NODE_0 DATA [OPTION OF THE TRAINER...]" >&2
  exit 2
fi
node=$1 address=$2 data=$3
shift 3
if [[ ! ${HORARUN_TOKEN:-} =~ ^.{16,}$ ]]; then
  echo "run.sh: HORARUN_TOKEN is to hold a secret of 16 characters or more, equal on both nodes" >&2
  exit 2
fi
export HORARUN_TOKEN # so that it is on no command line
read -ra options <<< "${DOCKER_OPTIONS:-}"

exec docker run --rm --name "hora-node$node" --hostname "node$node" \
  --network host --shm-size 2g --stop-signal USR1 --stop-timeout 120 \
  --env HORARUN_TOKEN --volume "$(realpath -- "$data"):/data:ro" --volume hora-models:/models \
  "${options[@]}" "${IMAGE:-hora}" \
  horarun --rendezvous "tcp://$address:29500" --nnodes 2 --node-rank "$node" \
  --nproc-per-node "${RANKS:-1}" --start-timeout 600 \
  "${TRAINER:-cifar10}" --data /data "$@"
