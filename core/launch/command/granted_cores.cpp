#include "core/launch/command/granted_cores.h"

#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

namespace hora::launch {
namespace {

/// 0 where the text is no positive number ("max", "-1").
double number_of(std::string_view text) {
  long long number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end != text.data() && number > 0 ? static_cast<double>(number) : 0;
}

double ratio(double quota, double period) {
  return period > 0 ? quota / period : 0;
}

/// Version 2: "200000 100000" or "max 100000".
double limit_v2(const FileReader& read, const std::string& folder) {
  const std::string text = read(folder + "/cpu.max").value_or("");
  std::string_view rest = text;
  const std::string_view quota = take_until(rest, ' ');
  return ratio(number_of(quota), number_of(rest));
}

double limit_v1(const FileReader& read, const std::string& folder) {
  const std::string quota = read(folder + "/cpu.cfs_quota_us").value_or("");
  const std::string period = read(folder + "/cpu.cfs_period_us").value_or("");
  return ratio(number_of(quota), number_of(period));
}

void lower(double& limit, double other) {
  if (other > 0 && (limit <= 0 || other < limit)) limit = other;
}

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

using Topology = std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)>;

Topology load_topology() {
  hwloc_topology_t topology = nullptr;
  if (hwloc_topology_init(&topology) != 0) return {nullptr, hwloc_topology_destroy};
  Topology owner(topology, hwloc_topology_destroy);
  // CPUs outside of this process's cpuset do not matter, nor do caches and devices.
  hwloc_topology_set_all_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_STRUCTURE);
  hwloc_topology_set_type_filter(topology, HWLOC_OBJ_CORE, HWLOC_TYPE_FILTER_KEEP_ALL);
  if (hwloc_topology_load(topology) != 0) owner.reset();
  return owner;
}

}  // namespace

double cgroup_cpu_limit(const FileReader& read) {
  double least = 0;
  for (const CgroupFolder& folder : cgroup_folders(read, "cpu")) {
    lower(least, folder.version == 2 ? limit_v2(read, folder.path) : limit_v1(read, folder.path));
  }
  return least;
}

GrantedCores granted_cores() {
  GrantedCores granted;
  for (const int cpu : allowed_cpus()) granted.cpus.push_back({cpu, cpu, 0});
  if (const Topology topology = load_topology()) {
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
  const double cpus = slurm == nullptr ? 0 : number_of(slurm);
  if (cpus > 0 && (granted.limit <= 0 || cpus < granted.limit)) {
    granted.limit = cpus;
    granted.limited_by = "Slurm's allocation";
  }
  return granted;
}

}  // namespace hora::launch
