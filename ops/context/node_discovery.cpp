#include "ops/context/node_discovery.h"

#include <hora/error.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include "core/base/log.h"
#include "core/base/process.h"
#include "core/base/text.h"
#include "core/control_block/node_control_block.h"
#include "ops/context/memory_node.h"

namespace hora::internal {
namespace {

/// Pages are allocated when they are touched, so a large first window costs nothing.
constexpr std::size_t kFirstWindow = std::size_t{64} << 20;

/// What each rank reports about its host, without padding.
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
      windows[i] = SharedMemory::open_first(tickets[i]);
    } catch (const Error& error) {
      if (reason.empty()) reason = error.what();
    }
  }
  return windows;
}

}  // namespace

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
  return text + "; rank " + std::to_string(rank) + " says: " + *reason +
         ". Do they run in one container, as one user?";
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
