#include "core/launch/command/cores.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>

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

std::string cpu_list_text(std::vector<int> cpus) {
  std::ranges::sort(cpus);
  std::string text;
  for (std::size_t i = 0; i < cpus.size();) {
    std::size_t end = i + 1;
    while (end < cpus.size() && cpus[end] == cpus[end - 1] + 1) ++end;
    if (!text.empty()) text += ',';
    text += std::to_string(cpus[i]);
    if (end - i > 1) text += (end - i == 2 ? "," : "-") + std::to_string(cpus[end - 1]);
    i = end;
  }
  return text;
}

std::string describe_cores(const GrantedCores& granted, int local_size, const CoreShare& share) {
  const std::vector<Core> cores = cores_of(granted);
  std::string text = counted(cores.size(), "core");
  if (granted.cpus.size() > cores.size()) {
    text += " (" + counted(granted.cpus.size(), "hyperthread") + ")";
  }
  if (usable(granted, cores.size()) < static_cast<int>(cores.size())) {
    text += ", time for " + std::to_string(usable(granted, cores.size())) + " by " +
            granted.limited_by + ",";
  }
  text += " for " + counted(static_cast<std::size_t>(std::max(1, local_size)), "rank") +
          " on this host: ";
  if (share.cpus.empty()) {
    text += "not bound";
  } else {
    std::set<int> bound;
    for (const Core& core : cores) {
      for (const int cpu : core.cpus) {
        if (std::ranges::binary_search(share.cpus, cpu)) bound.insert(core.core);
      }
    }
    text += "bound to " + counted(bound.size(), "core") + (local_size > 1 ? " each" : "");
  }
  return text + ", " + counted(static_cast<std::size_t>(share.threads), "thread") +
         (local_size > 1 ? " each" : "");
}

std::vector<Variable> thread_variables(const CoreShare& share, bool is_set) {
  if (is_set) return {};
  return {{"OMP_NUM_THREADS", std::to_string(share.threads)}};
}

}  // namespace hora::launch
