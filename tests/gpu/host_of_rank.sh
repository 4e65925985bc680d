#!/usr/bin/env bash
# Runs a command as a rank that NCCL takes for one on a host of its own, so that it lets several
# ranks share a GPU. They then talk over sockets: good for results, never for times.
export NCCL_HOSTID=host${OMPI_COMM_WORLD_RANK:-${PMIX_RANK:-0}}
exec "$@"
