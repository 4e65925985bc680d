/// The environment of ranks: which variables of horarun's they get on other hosts, which tell
/// libraries the network, what launchers have told a process of its rank; and a Slurm allocation's
/// hosts, and how a program is started on one of them.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/command/command.h"
#include "core/launch/options/hosts.h"

namespace hora::launch {

/// True of names that libraries for training read (HORA_*, NCCL_*, OMP_*, ...), of search paths,
/// and of MPI's own settings (OMPI_MCA_*); false of what belongs to one host or one process (HOME,
/// SSH_*, SLURM_*, HORARUN_*, PMIX_*), and of everything else.
bool is_forwarded(std::string_view name);

/// This process's own, as `NAME=value` entries, until something in it is set.
std::span<const char* const> environment_of_process() noexcept;
/// One of them; nothing where it is not set.
std::optional<std::string> variable_of_process(std::string_view name);

/// `NAME=value` entries of an environment, without those whose name is none.
std::vector<Variable> variables_of(std::span<const char* const> environment);

/// Those of `environment` that are forwarded by themselves or named by the user (-x NAME), in the
/// order of their names, each once.
std::vector<Variable> forwarded_variables(const std::vector<Variable>& environment,
                                          const std::vector<std::string>& named);

/// Tells NCCL (exact names, by "="), Gloo and libfabric (one name) and UCX the interfaces of a
/// host, the first preferred. With active RDMA ports UCX is told none, which would keep it from
/// them.
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

/// As Open MPI 3 to 5, hydra and srun tell it, in this order: mpirun within a Slurm allocation
/// leaves SLURM_PROCID to ranks that it does not describe. The error says what is missing or wrong.
tl::expected<RankPlace, std::string> rank_of_environment(const EnvironmentLookup& lookup);

/// Slurm's numbers by node: `2(x3),1` is 2 2 2 1; of at most kMostRanks nodes.
tl::expected<std::vector<int>, std::string> expand_counts(std::string_view text);

/// The hosts of a Slurm allocation with their slots: tasks where the job has asked for a number of
/// tasks, else cores (divided by those of a task). Empty outside of an allocation. Slurm's scontrol
/// expands the list of hosts.
tl::expected<std::vector<HostSlots>, std::string> slurm_hosts(const EnvironmentLookup& lookup);

/// The words before a command that start it once on `host`, with this environment and this
/// process's stdin and stdout: a step of its own, which shares the allocation's cores with others
/// (--overlap, Slurm 20.11 and later). With Slurm 22.05 it starts within 0.2 s, its exit status is
/// the command's (128 + signal), and a step whose srun is killed ends within 2 s.
std::vector<std::string> srun_prefix(const std::string& srun, const std::string& host);

}  // namespace hora::launch
