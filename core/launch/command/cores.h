/// A job's share of one host: which cores this process was granted, each rank's share of them, and
/// how much memory cgroups (version 2) leave. Pure, but for what is named of this process.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/command/command.h"

namespace hora::launch {

/// A logical CPU (hyperthread), as the kernel numbers it.
struct LogicalCpu {
  int cpu = 0;
  int core = 0;  ///< equal for the hyperthreads of one core; machine-wide
  int numa = 0;

  bool operator==(const LogicalCpu&) const = default;
};

struct GrantedCores {
  std::vector<LogicalCpu> cpus;  ///< that the affinity mask (and with it the cpuset) allows
  /// Logical CPUs' worth of time, whichever they are: a cgroup's quota or Slurm's number. 0: no
  /// limit.
  double limit = 0;
  std::string limited_by;  ///< "the cgroup's quota"; empty without a limit
};

enum class Binding {
  automatic,  ///< like `cores` where every rank has one for itself and they are the job's own, else
              ///< none
  none,       ///< ranks run wherever the job may
  cores,      ///< each rank on its share of cores, with all their hyperthreads
  numa,       ///< each rank on the NUMA nodes in which its share lies
};
std::string_view name_of(Binding binding) noexcept;
std::optional<Binding> parse_binding(std::string_view name) noexcept;

struct CoreShare {
  std::vector<int> cpus;   ///< sorted, for sched_setaffinity; empty: the rank is not bound
  int threads = 1;         ///< that compute, at least 1; the same for all ranks of a host
  bool is_shared = false;  ///< there are fewer cores, or less time, than ranks

  bool operator==(const CoreShare&) const = default;
};

/// Pieces are consecutive, and differ by one core at most. Threads are as many as the smallest has
/// cores, less one for the engine from 8 cores on, where it has neither a hyperthread nor a core
/// left over, and there are other ranks. `automatic` binds none where cores or their time are few.
CoreShare share_of_cores(const GrantedCores& granted, int local_rank, int local_size,
                         Binding binding, int world_size);

/// "2 ranks on 8 cores (16 hyperthreads), bound to 4 cores each, 4 threads each".
/// `omp_num_threads`: the user's own number of threads; empty: none.
std::string describe_cores(const GrantedCores& granted, int local_size, Binding binding,
                           int world_size, const std::string& omp_num_threads);

/// OMP_NUM_THREADS, which MKL and OpenBLAS follow; and where cores are shared Open MPI's
/// mpi_yield_when_idle, without which ranks that wait keep the others from what they wait for.
std::vector<Variable> rank_variables(const CoreShare& share);

/// The calling thread's affinity mask, with cores and NUMA nodes, and the lesser of the cgroup's
/// quota and SLURM_CPUS_ON_NODE (which a Slurm without an affinity plugin leaves unenforced). Takes
/// some milliseconds. Any thread.
GrantedCores granted_cores();

/// A file's contents, where it can be read.
using FileReader = std::function<std::optional<std::string>(const std::string& path)>;

/// A file of 64 KiB at most. Any thread.
std::optional<std::string> read_small_file(const std::string& path);

/// The least quota of this process's cgroup and those above it, in CPUs' worth of time; 0: none.
/// Pure but for `read`, as what follows.
double cgroup_cpu_limit(const FileReader& read);

/// Bytes: the least of MemAvailable (/proc/meminfo) and of what the cgroups leave, whose page cache
/// counts as available; 0: unknown.
std::uint64_t available_memory(const FileReader& read);

/// Processes of this one's cgroup that the kernel has killed for lack of memory, so far; 0: none,
/// or unknown.
std::uint64_t oom_kills(const FileReader& read);

}  // namespace hora::launch
