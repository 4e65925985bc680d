#include "ops/context/node_discovery.h"

#include <hwloc.h>
#include <malloc.h>
#include <sched.h>
#include <unistd.h>

#include "core/base/log.h"
#include "core/base/settings.h"
#include "core/base/text.h"

namespace hora::internal {

int memory_node_of_process() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) return kNoMemoryNode;
  const MachineTopology machine = machine_topology();
  if (!machine) return kNoMemoryNode;
  // Processors beside several kinds of memory have several nodes: the first stands for the set.
  hwloc_const_nodeset_t nodes = nullptr;
  hwloc_obj_t processor = nullptr;
  while ((processor = hwloc_get_next_obj_by_type(machine.get(), HWLOC_OBJ_PU, processor))) {
    if (processor->os_index >= CPU_SETSIZE || !CPU_ISSET(processor->os_index, &allowed)) continue;
    if (nodes && !hwloc_bitmap_isequal(nodes, processor->nodeset)) return kNoMemoryNode;
    nodes = processor->nodeset;
  }
  return nodes ? hwloc_bitmap_first(nodes) : kNoMemoryNode;
}

bool keep_large_allocations() {
#if defined(__GLIBC__)
  constexpr int kLarge = 1 << 30;
  constexpr int kOlderLibraries = 32 << 20;  // glibc before 2.35 refuses more
  const bool mapped =
      ::mallopt(M_MMAP_THRESHOLD, kLarge) == 1 || ::mallopt(M_MMAP_THRESHOLD, kOlderLibraries) == 1;
  const bool trimmed = ::mallopt(M_TRIM_THRESHOLD, kLarge) == 1;
  return mapped && trimmed;
#else
  return false;
#endif
}

std::optional<std::string> binding_advice(int cores_of_rank, int cores_of_host, int ranks_of_host) {
  if (cores_of_rank > 1 || cores_of_host <= ranks_of_host) return std::nullopt;
  return fmt::format(
      "each rank is bound to one core, which its engine shares with the training, while this host "
      "has {} cores for {} ranks: start with `mpirun --bind-to none`, or bind each rank to several "
      "cores",
      cores_of_host, ranks_of_host);
}

int cores_of_process() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

int cores_of_host() {
  return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
}

namespace {

/// The value that parse_settings has read for one variable, in canonical form.
std::string canonical(const Settings& settings, const std::string& variable) {
  for (const SettingAssignment& assignment : to_assignments(settings)) {
    if (assignment.variable == variable) return assignment.value;
  }
  return {};
}

/// One assignment's value in canonical form; empty where it is invalid.
std::string understood(const SettingAssignment& assignment) {
  try {
    return canonical(parse_settings(std::span(&assignment, 1)), assignment.variable);
  } catch (const Error&) {
    return {};
  }
}

std::string to_lines(std::span<const SettingAssignment> assignments) {
  std::string lines;
  for (const auto& a : assignments) lines += a.variable + "=" + a.value + "\n";
  return lines;
}

std::vector<SettingAssignment> from_lines(const std::string& lines) {
  std::vector<SettingAssignment> assignments;
  for (std::size_t begin = 0; begin < lines.size();) {
    const std::size_t end = lines.find('\n', begin);
    const std::string line = lines.substr(begin, end - begin);
    const std::size_t equals = line.find('=');
    assignments.push_back({line.substr(0, equals), line.substr(equals + 1)});
    begin = end == std::string::npos ? lines.size() : end + 1;
  }
  return assignments;
}

/// "[0 2] [1]", in the order given; "none".
std::string sets_text(const std::vector<std::vector<int>>& sets) {
  std::vector<std::string> texts;
  for (const auto& ranks : sets) texts.push_back(fmt::format("[{}]", fmt::join(ranks, " ")));
  return sets.empty() ? "none" : fmt::format("{}", fmt::join(texts, " "));
}

/// Pages are allocated when they are touched, so a large first window costs nothing.
constexpr std::size_t kFirstWindow = std::size_t{64} << 20;

/// The report of each rank about its host, without padding.
struct HostFacts {
  std::int64_t label = 0;  ///< the same on the ranks that can reach one another
  std::uint64_t memory = 0;
  std::uint64_t has_rdma = 0;  ///< or 1
  std::int64_t memory_node = kNoMemoryNode;
};

/// `reason`: why the first one that failed could not be mapped.
std::vector<std::optional<Window>> open_windows(const std::vector<WindowTicket>& tickets,
                                                int own_rank, std::string& reason) {
  std::vector<std::optional<Window>> windows(tickets.size());
  for (std::size_t i = 0; i < tickets.size(); ++i) {
    if (static_cast<int>(i) == own_rank) continue;
    try {
      windows[i].emplace(tickets[i]);
    } catch (const Error& error) {
      if (reason.empty()) reason = error.what();
    }
  }
  return windows;
}

}  // namespace

std::string disagreement(std::span<const SettingAssignment> own, int rank,
                         std::span<const SettingAssignment> of_rank_0) {
  const Settings in_force = parse_settings(of_rank_0);
  const Settings wanted = parse_settings(own);
  for (const SettingAssignment& assignment : own) {
    const std::string here = canonical(wanted, assignment.variable);
    const std::string there = canonical(in_force, assignment.variable);
    if (here != there) {
      return fmt::format(
          "{} is {} on rank {} but {} on rank 0, whose settings hold for all: set it on rank 0, or "
          "alike everywhere",
          assignment.variable, here, rank, there);
    }
  }
  return {};
}

void throw_together(Bootstrap& world, const std::string& text, ErrorCode code) {
  const auto texts = gather_texts(world, text);
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (!texts[rank].empty()) throw Error(code, texts[rank], static_cast<int>(rank));
  }
}

ProcessSettings settings_of_process(std::vector<SettingAssignment> of_environment,
                                    const Settings& given) {
  ProcessSettings result{.assignments = std::move(of_environment)};
  std::vector<SettingAssignment> changed;
  try {
    changed = changed_assignments(given);
    parse_settings(changed);
  } catch (const Error& error) {
    result.wrong = std::string("InitOptions::settings: ") + error.what();
    return result;
  }
  for (SettingAssignment& own : changed) {
    const auto same = [&](const SettingAssignment& other) {
      return other.variable == own.variable;
    };
    const auto set = std::ranges::find_if(result.assignments, same);
    if (set == result.assignments.end()) {
      result.assignments.push_back(std::move(own));
      continue;
    }
    const std::string theirs = understood(*set);
    if (theirs == own.value || theirs.empty() || !result.conflict.empty()) continue;
    result.conflict = fmt::format(
        "{} is {} in the environment, but {} in InitOptions::settings: set it in one of them, or "
        "alike in both",
        own.variable, theirs, own.value);
  }
  return result;
}

Settings agree_on_settings(Bootstrap& world, const ProcessSettings& of_process) {
  const std::string allowed = gather_texts(world, allowed_unknown(of_process.assignments))[0];
  const auto own = without_foreign(of_process.assignments, allowed);
  const std::string on_rank = "rank " + std::to_string(world.rank()) + ": ";
  std::string problem = of_process.wrong.empty() ? "" : on_rank + of_process.wrong;
  try {
    parse_settings(own);
  } catch (const Error& error) {
    if (problem.empty()) problem = on_rank + error.what();
  }
  throw_together(world, problem, ErrorCode::invalid_setting);
  throw_together(world, of_process.conflict.empty() ? "" : on_rank + of_process.conflict,
                 ErrorCode::invalid_argument);
  const auto of_rank_0 = from_lines(gather_texts(world, to_lines(own))[0]);
  throw_together(world, disagreement(own, world.rank(), of_rank_0), ErrorCode::invalid_setting);
  return parse_settings(of_rank_0);
}

std::string sets_disagreement(const std::vector<std::string>& by_rank) {
  for (std::size_t rank = 1; rank < by_rank.size(); ++rank) {
    if (by_rank[rank] == by_rank.front()) continue;
    return fmt::format(
        "hora::init: InitOptions::process_sets differ: rank 0 has {}, rank {} has {}: give every "
        "rank the same lists, in one order",
        by_rank.front(), rank, by_rank[rank]);
  }
  return {};
}

void agree_on_sets(Bootstrap& world, const std::vector<std::vector<int>>& sets) {
  const std::string problem = sets_disagreement(gather_texts(world, sets_text(sets)));
  if (!problem.empty()) throw Error(ErrorCode::mismatch, problem);
}

std::vector<int> group_by_reach(const std::vector<std::vector<bool>>& reach) {
  std::vector<int> group(reach.size(), -1);
  for (std::size_t i = 0; i < reach.size(); ++i) {
    for (std::size_t first = 0; first < i && group[i] < 0; ++first) {
      if (group[first] != static_cast<int>(first)) continue;  // not the first of a group
      bool all = true;
      for (std::size_t j = first; j < i; ++j) {
        if (group[j] == static_cast<int>(first)) all = all && reach[i][j] && reach[j][i];
      }
      if (all) group[i] = static_cast<int>(first);
    }
    if (group[i] < 0) group[i] = static_cast<int>(i);
  }
  return group;
}

std::string separation_text(const std::vector<int>& group, const std::vector<int>& ranks,
                            const std::vector<std::string>& reasons) {
  std::map<int, std::vector<int>> members;
  for (std::size_t i = 0; i < group.size(); ++i) members[group[i]].push_back(ranks[i]);
  if (members.size() < 2) return {};
  std::string text = "ranks of one host cannot map each other's memory:";
  for (const auto& [first, of_group] : members) {
    text += (first == members.begin()->first ? " ranks " : " | ") + ranks_text(of_group);
  }
  text += " are separate nodes, between which data goes over MPI, which is slower";
  const auto reason = std::ranges::find_if(reasons, [](const auto& r) { return !r.empty(); });
  if (reason == reasons.end()) return text;
  const auto rank = ranks[static_cast<std::size_t>(reason - reasons.begin())];
  return text + fmt::format("; rank {} says: {}. Do they run in one container, as one user?", rank,
                            *reason);
}

NodeDiscovery discover_nodes(Bootstrap& world, int ranks_per_node) {
  const auto host = world.of_host();
  auto memory = std::make_unique<SharedMemory>(kFirstWindow);
  std::string reason;
  auto windows = open_windows(all_gather_values(*host, memory->ticket()), host->rank(), reason);

  std::vector<std::byte> reached;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const bool is_own = static_cast<int>(i) == host->rank();
    reached.push_back(std::byte{windows[i].has_value() || is_own});
  }
  std::vector<std::vector<bool>> reach;
  for (const auto& row : host->all_gather(reached)) {
    auto& bits = reach.emplace_back();
    for (const std::byte bit : row) bits.push_back(bit != std::byte{0});
  }
  const std::vector<std::string> reasons = gather_texts(*host, reason);
  const std::vector<int> world_ranks = all_gather_values(*host, world.rank());
  const std::vector<int> groups = group_by_reach(reach);
  const std::string separation = separation_text(groups, world_ranks, reasons);
  if (host->rank() == 0 && !separation.empty()) log().warn("{}", separation);
  const int first = groups[static_cast<std::size_t>(host->rank())];
  const int label = world_ranks[static_cast<std::size_t>(first)];

  const int limit = ranks_per_node > 0 ? std::min(ranks_per_node, kMaxLocalSize) : kMaxLocalSize;
  // Fewer ranks than that do not share two memory nodes.
  constexpr int kLeastForMemoryNodes = 4;
  const int memory_node =
      host->size() < kLeastForMemoryNodes ? kNoMemoryNode : memory_node_of_process();
  std::vector<int> labels, memory_nodes;
  std::uint64_t smallest_memory = memory_of_host();
  bool has_rdma = false;
  for (const HostFacts& facts : all_gather_values(
           world,
           HostFacts{label, smallest_memory, active_rdma_ports().empty() ? 0U : 1U, memory_node})) {
    labels.push_back(static_cast<int>(facts.label));
    memory_nodes.push_back(static_cast<int>(facts.memory_node));
    smallest_memory = std::min(smallest_memory, facts.memory);
    has_rdma |= facts.has_rdma != 0;
  }
  const bool one_host = std::ranges::count(labels, label) == std::ssize(labels);
  NodeDiscovery result{make_topology(labels, limit),
                       std::move(memory),
                       host->rank(),
                       host->size(),
                       smallest_memory,
                       !one_host && !has_rdma,
                       std::move(memory_nodes)};
  if (!one_host)
    result.topology.radix = tree_radix(result.topology.nodes(), has_rdma ? kRdmaHop : kSocketHop);

  const int node = result.topology.node_of(world.rank());
  std::vector<Window> of_node;
  for (const int rank : result.topology.ranks_of_node[static_cast<std::size_t>(node)]) {
    const auto at = std::find(world_ranks.begin(), world_ranks.end(), rank) - world_ranks.begin();
    auto& window = windows[static_cast<std::size_t>(at)];
    of_node.push_back(window ? std::move(*window) : Window());
  }
  result.memory->connect(result.topology.local_rank_of(world.rank()), std::move(of_node));
  return result;
}

}  // namespace hora::internal
