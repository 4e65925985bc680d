/// Which rank a process is, from the variables that launchers set. Pure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace hora::launch {

struct RankPlace {
  int rank = 0;
  int size = 1;        ///< of the world
  int local_rank = 0;  ///< among the ranks on this host
  int local_size = 1;

  bool operator==(const RankPlace&) const = default;
};

/// A variable's value, where it is set.
using EnvironmentLookup = std::function<std::optional<std::string>(std::string_view name)>;

/// Open MPI 3 to 5 (OMPI_COMM_WORLD_*), hydra (PMI_RANK, MPI_LOCALRANKID, MPI_LOCALNRANKS), srun
/// (SLURM_PROCID, SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_TASKS_PER_NODE), in this order: mpirun
/// within a Slurm allocation leaves SLURM_PROCID to ranks that it does not describe. The error says
/// what is missing or no number; without any of them, that this process was not started by mpirun.
tl::expected<RankPlace, std::string> rank_of_environment(const EnvironmentLookup& lookup);

}  // namespace hora::launch
