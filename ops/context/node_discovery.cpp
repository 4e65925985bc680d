#include "ops/context/node_discovery.h"

#include <hora/error.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/board/board.h"
#include "core/log.h"

namespace hora {
namespace {

/// Pages are taken when they are touched, so a roomy first window costs nothing.
constexpr std::size_t kFirstWindow = std::size_t{64} << 20;

template <class T>
std::vector<T> all_gather_values(const Communicator& comm, const T& mine) {
  std::vector<T> values;
  for (const auto& bytes : comm.all_gather(std::as_bytes(std::span(&mine, 1)))) {
    std::memcpy(&values.emplace_back(), bytes.data(), sizeof(T));
  }
  return values;
}

std::vector<std::optional<Window>> open_windows(const std::vector<WindowTicket>& tickets, int me) {
  std::vector<std::optional<Window>> windows(tickets.size());
  for (std::size_t i = 0; i < tickets.size(); ++i) {
    if (static_cast<int>(i) == me) continue;
    try {
      windows[i] = SharedMemory::open_first(tickets[i]);
    } catch (const Error& error) {
      log().info("a window of this host cannot be mapped: {}", error.what());
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

NodeDiscovery discover_nodes(const Communicator& world, int ranks_per_node) {
  const Communicator host = world.split_by_shared_memory();
  auto memory = std::make_unique<SharedMemory>(kFirstWindow);
  auto windows = open_windows(all_gather_values(host, memory->ticket()), host.rank());

  std::vector<std::byte> reached;
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const bool mine = static_cast<int>(i) == host.rank();
    reached.push_back(std::byte{windows[i].has_value() || mine});
  }
  std::vector<std::vector<bool>> reach;
  for (const auto& row : host.all_gather(reached)) {
    auto& bits = reach.emplace_back();
    for (const std::byte bit : row) bits.push_back(bit != std::byte{0});
  }
  const std::vector<int> world_ranks = all_gather_values(host, world.rank());
  const int first = group_by_reach(reach)[static_cast<std::size_t>(host.rank())];
  const int label = world_ranks[static_cast<std::size_t>(first)];

  const int limit = ranks_per_node > 0 ? std::min(ranks_per_node, kMaxLocalSize) : kMaxLocalSize;
  NodeDiscovery result{make_topology(all_gather_values(world, label), limit), std::move(memory),
                       host.rank(), host.size()};

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

}  // namespace hora
