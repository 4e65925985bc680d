/// Whether what travels between nodes goes from GPU memory straight into MPI.
#pragma once

#include <hora/settings.h>

#include <span>
#include <string>

#include "ops/cross/point_to_point.h"
#include "ops/mpi/implementation.h"

namespace hora::internal {

struct DeviceStagingChoice {
  bool on_device = false;
  bool doubtful = false;  ///< forced on by the setting, though MPI does not report it
  std::string reason;     ///< for the log, a sentence without full stop
};

/// `by_rank`: what each rank's MPI says. The same on all ranks for the same arguments. The setting
/// `on` overrides MPI's own answer, which can be a wrong no. Pure.
DeviceStagingChoice choose_device_staging(CudaAwareMpi setting,
                                          std::span<const CudaSupport> by_rank, int nodes);

/// Whether slices stay in GPU memory between nodes, where this rank's MPI says `own`: the same
/// answer on every rank, logged by rank 0. Collective.
bool agree_on_device_staging(Bootstrap& world, CudaSupport own, const Settings& settings,
                             int nodes);

}  // namespace hora::internal
