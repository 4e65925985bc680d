#include "core/launch/command/cores.h"

#include <hora/printable.h>
#include <hwloc.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "core/base/process.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

constexpr std::array<std::string_view, 4> kBindings = {"auto", "none", "core", "numa"};

struct Core {
  int numa = 0, core = 0;
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

/// The folders of this process's cgroup and of those above it, up to the root: all of them limit
/// it. Within a container some may not be there.
std::vector<std::string> cgroup_folders(const FileReader& read) {
  constexpr std::string_view kUnified = "0::";  // hierarchy 0, no controllers (version 2), path
  std::vector<std::string> folders;
  const std::string text = read("/proc/self/cgroup").value_or("");
  for (const std::string_view line : split(text, '\n')) {
    if (!line.starts_with(kUnified)) continue;
    auto path = std::filesystem::path(line.substr(kUnified.size())).relative_path();
    for (; !path.empty(); path = path.parent_path()) folders.push_back("/sys/fs/cgroup" / path);
    folders.emplace_back("/sys/fs/cgroup");
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

std::optional<std::string> read_small_file(const std::string& path) {
  auto text = read_input_file(path, 65536);
  return text ? std::optional(std::move(*text)) : std::nullopt;
}

double cgroup_cpu_limit(const FileReader& read) {
  double least = 0;
  for (const std::string& folder : cgroup_folders(read)) {
    const std::string text = read(folder + "/cpu.max").value_or("");  // "200000 100000"
    const auto quota = static_cast<double>(number_in(text).value_or(0));
    const std::string_view after =
        std::string_view(text).substr(std::min(text.find(' '), text.size()));
    const auto period = static_cast<double>(number_in(after).value_or(0));
    if (quota > 0 && period > 0 && (least <= 0 || quota / period < least)) least = quota / period;
  }
  return least;
}

std::uint64_t available_memory(const FileReader& read) {
  auto least = number_after(read, "/proc/meminfo", "MemAvailable:");
  if (least) *least *= 1024;
  for (const std::string& folder : cgroup_folders(read)) {
    const auto limit = number_after(read, folder + "/memory.max", "");
    const auto usage = number_after(read, folder + "/memory.current", "");
    if (!limit || !usage) continue;
    const auto cache = number_after(read, folder + "/memory.stat", "inactive_file ").value_or(0);
    const std::uint64_t used = std::min(*limit, *usage - std::min(*usage, cache));
    // A limit that is used up counts as one byte: 0 is unknown.
    const std::uint64_t left = std::max<std::uint64_t>(1, *limit - used);
    least = std::min(least.value_or(left), left);
  }
  return least.value_or(0);
}

std::uint64_t oom_kills(const FileReader& read) {
  for (const std::string& folder : cgroup_folders(read)) {
    if (const auto kills = number_after(read, folder + "/memory.events", "oom_kill "))
      return *kills;
  }
  return 0;
}

GrantedCores granted_cores() {
  GrantedCores granted;
  const internal::MachineTopology topology = internal::machine_topology();
  const std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> allowed(hwloc_bitmap_alloc(),
                                                                              &hwloc_bitmap_free);
  if (topology && hwloc_get_cpubind(topology.get(), allowed.get(), HWLOC_CPUBIND_THREAD) == 0) {
    hwloc_obj_t cpu = nullptr;
    while ((cpu = hwloc_get_next_obj_inside_cpuset_by_type(topology.get(), allowed.get(),
                                                           HWLOC_OBJ_PU, cpu)) != nullptr) {
      const auto core = hwloc_get_ancestor_obj_by_type(topology.get(), HWLOC_OBJ_CORE, cpu);
      granted.cpus.push_back({static_cast<int>(cpu->os_index),
                              static_cast<int>((core == nullptr ? cpu : core)->logical_index),
                              std::max(0, hwloc_bitmap_first(cpu->nodeset))});
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
