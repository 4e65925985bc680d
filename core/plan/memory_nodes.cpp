#include <algorithm>

#include "core/plan/plan.h"

namespace hora::internal {
namespace {

/// Ranks of a memory node that are fewer have nothing to share.
constexpr std::size_t kLeastRanks = 2;

bool fits(OperationKind kind, DataType type, double prescale, std::size_t bytes) {
  return bytes >= MemoryNodes::kLeastBytes && kind == OperationKind::allreduce && prescale == 1.0 &&
         type != DataType::float16 && type != DataType::bfloat16;
}

/// Every rank of the node has all of its tensors.
bool is_complete(const BoundUnit& unit) {
  for (std::size_t t = 0; t < unit.unit.tensors.size(); ++t) {
    if (unit.unit.tensors[t].range.bytes == 0) continue;
    for (int r = 0; r < unit.local_size; ++r) {
      if (!unit.tensor(t, r)) return false;
    }
  }
  return true;
}

}  // namespace

MemoryNodes MemoryNodes::of(std::span<const int> of_rank) {
  if (of_rank.empty()) return {};
  const auto first = static_cast<std::size_t>(
      std::ranges::find_if(of_rank, [&](int node) { return node != of_rank.front(); }) -
      of_rank.begin());
  if (first < kLeastRanks || first == of_rank.size() || of_rank.size() % first != 0) return {};
  for (std::size_t r = 0; r < of_rank.size(); ++r) {
    if (of_rank[r] < 0 || of_rank[r] != of_rank[r - r % first]) return {};
    // A memory node's ranks are together: it does not come again.
    if (r % first == 0 && std::ranges::count(of_rank, of_rank[r]) != static_cast<long>(first)) {
      return {};
    }
  }
  return {.count = static_cast<int>(of_rank.size() / first), .ranks = static_cast<int>(first)};
}

MemoryNodes MemoryNodes::of(const Topology& set, std::span<const int> of_rank) {
  if (set.nodes() != 1) return {};
  std::vector<int> of_local_rank;
  for (const int rank : set.ranks_of_node.front()) {
    of_local_rank.push_back(of_rank[static_cast<std::size_t>(rank)]);
  }
  return of(of_local_rank);
}

std::vector<int> virtual_memory_nodes(const Topology& world, int ranks) {
  std::vector<int> of_rank(static_cast<std::size_t>(world.size()));
  for (const auto& of_node : world.ranks_of_node) {
    for (std::size_t r = 0; r < of_node.size(); ++r) {
      of_rank[static_cast<std::size_t>(of_node[r])] = static_cast<int>(r) / ranks;
    }
  }
  return of_rank;
}

bool MemoryNodes::sum_apart(const Signature& signature, std::size_t bytes) const {
  return count > 1 && fits(signature.kind, signature.type, signature.prescale, bytes);
}

bool MemoryNodes::sum_apart(const BoundUnit& unit) const {
  const Unit& plan = unit.unit;
  return count > 1 && fits(plan.kind, plan.type, plan.prescale, plan.bytes) && is_complete(unit);
}

}  // namespace hora::internal
