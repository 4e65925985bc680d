/// What a Slurm allocation says about hosts, and how a program is started on one of them. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace hora::launch {

/// More are refused: a list of 24 characters can name 10^9 hosts.
inline constexpr std::size_t kMostSlurmHosts = 65536;

/// Slurm's host lists (slurm.conf(5), scontrol show hostnames): `a[1-3,07-09],b`, also with several
/// brackets in a name; a number keeps the width in which its range begins. In order, no name twice
/// left out.
tl::expected<std::vector<std::string>, std::string> expand_host_list(std::string_view text);

/// Slurm's numbers by node: `2(x3),1` is 2 2 2 1.
tl::expected<std::vector<int>, std::string> expand_counts(std::string_view text);

struct SlurmHost {
  std::string name;
  int slots = 1;

  bool operator==(const SlurmHost&) const = default;
};

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
tl::expected<std::vector<SlurmHost>, std::string> slurm_hosts(const SlurmVariables& variables);

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
/// it, run ranks as elsewhere, with the command lines of mpi_command.h.
std::vector<std::string> srun_prefix(const std::string& srun, const std::string& host);

}  // namespace hora::launch
