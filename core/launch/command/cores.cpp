#include "core/launch/command/cores.h"

#include <hora/printable.h>
#include <hwloc.h>
#include <sched.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "core/base/process.h"
#include "core/launch/text.h"

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
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
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
    text += fmt::format(" with the time of {} ({})", have, granted.limited_by);
  }
  std::size_t least = cores.size(), most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::size_t bound =
        cores_among(cores, share_of_cores(granted, rank, ranks, binding, world_size).cpus);
    least = std::min(least, bound);
    most = std::max(most, bound);
  }
  const std::string fewest = least == most ? "" : fmt::format("{} to ", least);
  text += most == 0 ? ", not bound"
                    : fmt::format(", bound to {}{}{}", fewest, counted(most, "core"), each);
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
  std::array<cpu_set_t, 64> sets{};  // too few for the machine's CPUs are an EINVAL of the kernel
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof sets, sets.data()) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE * static_cast<int>(sets.size()); ++cpu) {
    if (CPU_ISSET_S(cpu, sizeof sets, sets.data())) cpus.push_back(cpu);
  }
  return cpus;
}

struct CgroupFolder {
  std::string path;
  int version = 2;  ///< of cgroups: 1 or 2
};

/// `path` below `mount`, and all folders above it.
void add_with_parents(std::vector<CgroupFolder>& folders, const std::string& mount,
                      std::string_view path, int version) {
  while (true) {
    while (path.ends_with('/')) path.remove_suffix(1);
    folders.push_back({mount + std::string(path), version});
    if (path.empty()) return;
    path = path.substr(0, std::min(path.rfind('/'), path.size()));
    if (path.find('/') == path.npos) path = {};
  }
}

/// The folders of the cgroups of `controller` ("cpu", "memory") that /proc/self/cgroup names, each
/// with those above it, up to the root: all of them limit this process. Within a container a path
/// may not be there.
std::vector<CgroupFolder> cgroup_folders(const FileReader& read, std::string_view controller) {
  const std::string text = read("/proc/self/cgroup").value_or("");
  std::vector<CgroupFolder> folders;
  for (const std::string_view line : split(text, '\n')) {  // hierarchy:controllers:path
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', std::min(first, line.size() - 1) + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers(line.substr(first + 1, second - first - 1));
    const std::string_view path = line.substr(second + 1);
    const auto names = split(controllers, ',');
    if (line.substr(0, first) == "0" && controllers.empty()) {
      add_with_parents(folders, "/sys/fs/cgroup", path, 2);
      add_with_parents(folders, "/sys/fs/cgroup/unified", path, 2);
    } else if (std::ranges::find(names, controller) != names.end()) {
      add_with_parents(folders, "/sys/fs/cgroup/" + controllers, path, 1);
      add_with_parents(folders, "/sys/fs/cgroup/" + std::string(controller), path, 1);
    }
  }
  return folders;
}

/// The number that the text begins with, after spaces; none: "max".
std::optional<std::uint64_t> number_in(std::string_view text) {
  text = trimmed(text);
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return number;
}

/// The number after `name` at the beginning of a line of a file.
std::optional<std::uint64_t> number_after(const FileReader& read, const std::string& path,
                                          std::string_view name) {
  const std::string text = read(path).value_or("");
  for (const std::string_view line : split(text, '\n')) {
    if (line.starts_with(name)) return number_in(line.substr(name.size()));
  }
  return std::nullopt;
}

/// CPUs' worth of time; 0: no limit. Version 2: "200000 100000" or "max 100000".
double cpu_limit(const FileReader& read, const CgroupFolder& folder) {
  const std::string quota =
      read(folder.path + (folder.version == 2 ? "/cpu.max" : "/cpu.cfs_quota_us")).value_or("");
  const std::string period = folder.version == 2
                                 ? quota.substr(std::min(quota.find(' '), quota.size()))
                                 : read(folder.path + "/cpu.cfs_period_us").value_or("");
  const auto most = static_cast<double>(number_in(quota).value_or(0));
  const auto length = static_cast<double>(number_in(period).value_or(0));
  return length > 0 ? most / length : 0;
}

std::optional<std::uint64_t> memory_left(const FileReader& read, const CgroupFolder& folder) {
  const bool v2 = folder.version == 2;
  const auto number = [&](const char* of_v2, const char* of_v1) {
    return number_in(read(folder.path + (v2 ? of_v2 : of_v1)).value_or(""));
  };
  const auto limit = number("/memory.max", "/memory.limit_in_bytes");
  const auto usage = number("/memory.current", "/memory.usage_in_bytes");
  if (!limit || !usage) return std::nullopt;
  const auto cache = number_after(read, folder.path + "/memory.stat",
                                  v2 ? "inactive_file " : "total_inactive_file ");
  const std::uint64_t used = *usage - std::min(*usage, cache.value_or(0));
  return *limit - std::min(*limit, used);
}

}  // namespace

std::optional<std::string> read_small_file(const std::string& path) {
  constexpr std::size_t kMost = 65536;
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::string text(kMost, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

double cgroup_cpu_limit(const FileReader& read) {
  double least = 0;
  for (const CgroupFolder& folder : cgroup_folders(read, "cpu")) {
    const double limit = cpu_limit(read, folder);
    if (limit > 0 && (least <= 0 || limit < least)) least = limit;
  }
  return least;
}

std::uint64_t available_memory(const FileReader& read) {
  auto least = number_after(read, "/proc/meminfo", "MemAvailable:");
  if (least) *least *= 1024;
  for (const CgroupFolder& folder : cgroup_folders(read, "memory")) {
    const auto left = memory_left(read, folder);
    // A limit that is used up counts as one byte: 0 is unknown.
    if (left) least = std::min(least.value_or(*left), std::max<std::uint64_t>(1, *left));
  }
  return least.value_or(0);
}

std::uint64_t oom_kills(const FileReader& read) {
  for (const CgroupFolder& folder : cgroup_folders(read, "memory")) {
    const char* file = folder.version == 2 ? "/memory.events" : "/memory.oom_control";
    if (const auto kills = number_after(read, folder.path + file, "oom_kill ")) return *kills;
  }
  return 0;
}

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
  const auto cpus = static_cast<double>(number_in(slurm == nullptr ? "" : slurm).value_or(0));
  if (cpus > 0 && (granted.limit <= 0 || cpus < granted.limit)) {
    granted.limit = cpus;
    granted.limited_by = "Slurm's allocation";
  }
  return granted;
}

}  // namespace hora::launch
