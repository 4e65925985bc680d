/// The environment of ranks: which variables of horarun's they get on other hosts, which tell
/// libraries the network, and what launchers have told a process of its rank. Pure, but for what is
/// named of this process or host.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/command/command.h"

namespace hora::launch {

/// Names alone decide; values travel over the agents, never on a command line.
///
/// True of names that libraries for training read (HORA_*, NCCL_*, OMP_*, ...), of search paths,
/// and of MPI's own settings (OMPI_MCA_*); false of what belongs to one host or one process (HOME,
/// DISPLAY, SSH_*, SLURM_*, HORARUN_*, PMIX_*), and of everything else.
bool is_forwarded(std::string_view name) noexcept;

/// This process's own, as `NAME=value` entries, until something in it is set.
std::span<const char* const> environment_of_process() noexcept;

/// One of them; nothing where it is not set.
std::optional<std::string> variable_of_process(std::string_view name);

/// `NAME=value` entries of an environment. An entry without '=' or with a name that is none is left
/// out.
std::vector<Variable> variables_of(std::span<const char* const> environment);

/// Those of `environment` that are forwarded by themselves or named by the user (-x NAME), in the
/// order of their names, each once.
std::vector<Variable> forwarded_variables(const std::vector<Variable>& environment,
                                          const std::vector<std::string>& named);

/// The interfaces of a host, as the libraries of its ranks take them. For ranks on a host that
/// reaches the others by `interfaces` (names of this host, the first
/// preferred): NCCL_SOCKET_IFNAME (exact names, by "="), GLOO_SOCKET_IFNAME and FI_TCP_IFACE (one
/// name), UCX_NET_DEVICES. The latter is left out where the host has active RDMA ports, for it
/// would keep UCX from them; NCCL's variable concerns sockets alone. None without interfaces. What
/// the user has set is for the caller to leave (without_users_own()).
std::vector<Variable> network_variables(const std::vector<std::string>& interfaces, bool has_rdma);

/// Which rank a process is.
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
