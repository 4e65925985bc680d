/// The environment of ranks: which variables of horarun's they get on other hosts, which tell
/// libraries the network, what launchers have told a process of its rank; and a Slurm allocation's
/// hosts, and how a program is started on one of them. Pure, but for what is named of this process
/// or host.
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

/// Names alone decide; values travel over the agents, never on a command line.
///
/// True of names that libraries for training read (HORA_*, NCCL_*, OMP_*, ...), of search paths,
/// and of MPI's own settings (OMPI_MCA_*); false of what belongs to one host or one process (HOME,
/// DISPLAY, SSH_*, SLURM_*, HORARUN_*, PMIX_*), and of everything else.
bool is_forwarded(std::string_view name);

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

/// More are refused: a list of 24 characters can name 10^9 hosts.
inline constexpr std::size_t kMostSlurmHosts = kMostRanks;

/// Slurm's host lists (slurm.conf(5), scontrol show hostnames): `a[1-3,07-09],b`, also with several
/// brackets in a name; a number keeps the width in which its range begins. In order, no name twice
/// left out.
tl::expected<std::vector<std::string>, std::string> expand_host_list(std::string_view text);

/// Slurm's numbers by node: `2(x3),1` is 2 2 2 1.
tl::expected<std::vector<int>, std::string> expand_counts(std::string_view text);

struct SlurmVariables {
  std::string job_nodelist;                    ///< SLURM_JOB_NODELIST; empty: no allocation
  std::optional<std::string> ntasks_per_node;  ///< SLURM_TASKS_PER_NODE
  std::optional<std::string> cpus_per_node;    ///< SLURM_JOB_CPUS_PER_NODE
  std::optional<std::string> cpus_per_task;    ///< SLURM_CPUS_PER_TASK
  bool ntasks_requested = false;               ///< SLURM_NTASKS or SLURM_NTASKS_PER_NODE is set
};
/// From this process's environment.
SlurmVariables slurm_variables();

/// The allocation's hosts with their slots: tasks where the job has asked for a number of tasks,
/// else cores (divided by those of a task).
tl::expected<std::vector<HostSlots>, std::string> slurm_hosts(const SlurmVariables& variables);

/// Whether `host` is one of the allocation's, as Slurm names it. False outside of an allocation.
bool is_allocated(const SlurmVariables& variables, std::string_view host);

/// The words before a command that start it once on `host`, with this environment and this
/// process's stdin and stdout. A step of its own, which shares the allocation's cores with the
/// others (--overlap, Slurm 20.11 and later), and is no MPI program for Slurm.
///
/// Found by experiment with Slurm 22.05: starts within 0.2 s, also several at once in an allocation
/// whose cores other steps hold; bytes pass unchanged and at once in both directions; the exit
/// status is the command's (128 + signal); a step whose srun is killed by SIGKILL ends within 2 s.
/// srun itself writes to stderr: "Exited with exit code" of a failure, and "lacks support for cpu
/// binding" where Slurm has no affinity plugin, in spite of --quiet. orted and prted, started by
/// it, run ranks as elsewhere, with the command lines of mpi.h.
std::vector<std::string> srun_prefix(const std::string& srun, const std::string& host);

}  // namespace hora::launch
