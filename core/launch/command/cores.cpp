#include "core/launch/command/cores.h"

#include <hora/printable.h>
#include <hwloc.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "core/base/process.h"
#include "core/launch/command/resource_limits.h"

namespace hora::launch {
namespace {

constexpr std::array<std::string_view, 4> kBindings = {"auto", "none", "cores", "numa"};

struct Core {
  int numa = 0;
  int core = 0;
  std::vector<int> cpus;
};

/// Sorted by NUMA node, then by core.
std::vector<Core> cores_of(const GrantedCores& granted) {
  std::vector<LogicalCpu> cpus = granted.cpus;
  std::ranges::sort(cpus, {},
                    [](const LogicalCpu& cpu) { return std::tuple(cpu.numa, cpu.core, cpu.cpu); });
  std::vector<Core> cores;
  for (const LogicalCpu& cpu : cpus) {
    if (cores.empty() || cores.back().core != cpu.core || cores.back().numa != cpu.numa) {
      cores.push_back({cpu.numa, cpu.core, {}});
    }
    cores.back().cpus.push_back(cpu.cpu);
  }
  return cores;
}

/// Cores' worth of time: of a limit below one core, one.
int usable(const GrantedCores& granted, std::size_t cores) {
  const int all = std::max(1, static_cast<int>(cores));
  if (granted.limit <= 0 || granted.limit >= all) return all;
  return std::max(1, static_cast<int>(std::floor(granted.limit)));
}

/// The piece of local rank `rank`: where there are fewer cores than ranks, one core, which others
/// have, too.
std::vector<Core> piece_of(const std::vector<Core>& cores, std::size_t rank, std::size_t ranks) {
  const std::size_t begin = rank * cores.size() / ranks;
  const std::size_t end = std::max(begin + 1, (rank + 1) * cores.size() / ranks);
  return {cores.begin() + static_cast<std::ptrdiff_t>(begin),
          cores.begin() + static_cast<std::ptrdiff_t>(end)};
}

std::vector<int> bound_cpus(const std::vector<Core>& cores, const std::vector<Core>& piece,
                            Binding binding) {
  std::set<int> numa;
  for (const Core& core : piece) numa.insert(core.numa);
  std::vector<int> cpus;
  for (const Core& core : binding == Binding::numa ? cores : piece) {
    if (numa.contains(core.numa)) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  }
  std::ranges::sort(cpus);
  return cpus;
}

/// How many cores have one of these CPUs, which are sorted.
std::size_t cores_among(const std::vector<Core>& cores, const std::vector<int>& cpus) {
  return static_cast<std::size_t>(std::ranges::count_if(cores, [&](const Core& core) {
    return std::ranges::any_of(core.cpus,
                               [&](int cpu) { return std::ranges::binary_search(cpus, cpu); });
  }));
}

std::string counted(std::size_t count, std::string_view what) {
  return std::to_string(count) + " " + std::string(what) + (count == 1 ? "" : "s");
}

}  // namespace

std::string_view name_of(Binding binding) noexcept {
  return kBindings[static_cast<std::size_t>(binding)];
}

std::optional<Binding> parse_binding(std::string_view name) noexcept {
  const auto found = std::ranges::find(kBindings, name);
  if (found == kBindings.end()) return std::nullopt;
  return static_cast<Binding>(found - kBindings.begin());
}

CoreShare share_of_cores(const GrantedCores& granted, int local_rank, int local_size,
                         Binding binding, int world_size) {
  const std::vector<Core> cores = cores_of(granted);
  if (cores.empty()) return {};
  const int ranks = std::max(1, local_size);
  const auto rank = static_cast<std::size_t>(std::clamp(local_rank, 0, ranks - 1));
  const int have = usable(granted, cores.size());
  const bool limited = have < static_cast<int>(cores.size());
  const int each = have / ranks;

  CoreShare share;
  share.threads = std::max(1, each);
  share.is_shared = each == 0;
  const bool own = each >= 1 && !limited;
  if (own && each >= 8 && have % ranks == 0 && world_size > 1) {
    const bool hyperthreads =
        std::ranges::any_of(cores, [](const Core& core) { return core.cpus.size() > 1; });
    if (!hyperthreads) --share.threads;
  }
  if (binding == Binding::none || (binding == Binding::automatic && !own)) return share;
  share.cpus = bound_cpus(cores, piece_of(cores, rank, static_cast<std::size_t>(ranks)), binding);
  return share;
}

std::string describe_cores(const GrantedCores& granted, int local_size, Binding binding,
                           int world_size, const std::string& omp_num_threads) {
  const std::vector<Core> cores = cores_of(granted);
  const int ranks = std::max(1, local_size);
  const std::string each = ranks > 1 ? " each" : "";
  std::string text =
      counted(static_cast<std::size_t>(ranks), "rank") + " on " + counted(cores.size(), "core");
  if (granted.cpus.size() > cores.size()) {
    text += " (" + counted(granted.cpus.size(), "hyperthread") + ")";
  }
  if (const int have = usable(granted, cores.size()); have < static_cast<int>(cores.size())) {
    text += " with the time of " + std::to_string(have) + " (" + granted.limited_by + ")";
  }
  std::size_t least = cores.size(), most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::size_t bound =
        cores_among(cores, share_of_cores(granted, rank, ranks, binding, world_size).cpus);
    least = std::min(least, bound);
    most = std::max(most, bound);
  }
  if (most == 0) {
    text += ", not bound";
  } else if (least == most) {
    text += ", bound to " + counted(most, "core") + each;
  } else {
    text += ", bound to " + std::to_string(least) + " to " + counted(most, "core") + each;
  }
  if (!omp_num_threads.empty()) return text + ", OMP_NUM_THREADS=" + printable(omp_num_threads);
  const int threads = share_of_cores(granted, 0, ranks, binding, world_size).threads;
  return text + ", " + counted(static_cast<std::size_t>(threads), "thread") + each;
}

std::vector<Variable> rank_variables(const CoreShare& share) {
  std::vector<Variable> variables = {{"OMP_NUM_THREADS", std::to_string(share.threads)}};
  if (share.is_shared) variables.push_back({"OMPI_MCA_mpi_yield_when_idle", "1"});
  return variables;
}

namespace {

std::vector<int> allowed_cpus() {
  // More CPUs than fit are an EINVAL of the kernel.
  for (int count = CPU_SETSIZE; count <= 1 << 20; count *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(count),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    const std::size_t bytes = CPU_ALLOC_SIZE(count);
    if (::sched_getaffinity(0, bytes, set.get()) != 0) continue;
    std::vector<int> cpus;
    for (int cpu = 0; cpu < count; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, set.get())) cpus.push_back(cpu);
    }
    return cpus;
  }
  return {};
}

}  // namespace

GrantedCores granted_cores() {
  GrantedCores granted;
  for (const int cpu : allowed_cpus()) granted.cpus.push_back({cpu, cpu, 0});
  if (const internal::MachineTopology topology = internal::machine_topology()) {
    std::map<int, std::pair<int, int>> places;  // of a CPU: core, NUMA node
    hwloc_obj_t core = nullptr;
    while ((core = hwloc_get_next_obj_by_type(topology.get(), HWLOC_OBJ_CORE, core)) != nullptr) {
      const int numa =
          core->nodeset == nullptr ? 0 : std::max(0, hwloc_bitmap_first(core->nodeset));
      for (int cpu = hwloc_bitmap_first(core->cpuset); cpu >= 0;
           cpu = hwloc_bitmap_next(core->cpuset, cpu)) {
        places[cpu] = {static_cast<int>(core->logical_index), numa};
      }
    }
    const bool complete = std::ranges::all_of(
        granted.cpus, [&](const LogicalCpu& cpu) { return places.contains(cpu.cpu); });
    for (LogicalCpu& cpu : granted.cpus) {
      if (complete) std::tie(cpu.core, cpu.numa) = places[cpu.cpu];
    }
  }
  granted.limit = cgroup_cpu_limit(read_small_file);
  if (granted.limit > 0) granted.limited_by = "the cgroup's quota";
  const char* const slurm = std::getenv("SLURM_CPUS_ON_NODE");
  const double cpus = slurm == nullptr ? 0 : positive_number(slurm);
  if (cpus > 0 && (granted.limit <= 0 || cpus < granted.limit)) {
    granted.limit = cpus;
    granted.limited_by = "Slurm's allocation";
  }
  return granted;
}

}  // namespace hora::launch
