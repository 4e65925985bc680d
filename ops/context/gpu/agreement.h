/// What all ranks must know of each other's GPUs before they work together. Collective.
#pragma once

#include <hora/settings.h>

#include "core/negotiation/topology.h"
#include "ops/cuda/functions.h"
#include "ops/mpi/communicator.h"

namespace hora {

/// Throws the same Error(invalid_use) on every rank where NCCL would refuse a node's GPUs; each
/// node's first rank logs how its GPUs are linked.
void check_gpus(const CudaFunctions& cuda, const Communicator& world, const Topology& topology,
                int device);

/// Whether slices stay in GPU memory between nodes: the same answer on every rank, logged by rank
/// 0.
bool agree_on_device_staging(const Communicator& world, const Settings& settings, int nodes);

}  // namespace hora
