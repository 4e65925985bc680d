#include "core/plan/plan.h"

#include <algorithm>

namespace hora::internal {
namespace {

/// The longest chunk that is chosen: staging takes several.
constexpr std::size_t kLongestChunk = std::size_t{32} << 20;

bool fuses(const Signature& a, const Signature& b) {
  if (is_exchange(a.kind)) return false;
  return a.kind == b.kind && a.type == b.type && a.op == b.op && a.device == b.device &&
         a.root == b.root && a.prescale == b.prescale && a.postscale == b.postscale;
}

std::size_t chunk_length(std::size_t unit_bytes, std::size_t limit) {
  if (limit == 0 || unit_bytes <= limit) return std::max(unit_bytes, kAlignment);
  // Equal chunks instead of a short last one: ceil(unit / number of chunks).
  const std::size_t chunks = (unit_bytes + limit - 1) / limit;
  return align_up((unit_bytes + chunks - 1) / chunks);
}

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

std::size_t chunk_limit(std::size_t setting, int nodes) {
  constexpr std::size_t kOfEachNode = std::size_t{32} << 10;
  constexpr std::size_t kLeast = std::size_t{1} << 20;
  if (setting > 0) return setting;
  return std::clamp(static_cast<std::size_t>(nodes) * kOfEachNode, kLeast, kLongestChunk);
}

std::size_t broadcast_chunk_limit(std::size_t setting) {
  return setting > 0 ? setting : std::size_t{512} << 10;
}

std::size_t device_chunk_limit(std::size_t setting, int nodes, int slices) {
  constexpr std::size_t kOfEachSlice = std::size_t{2} << 20;
  if (setting > 0) return setting;
  return std::clamp(static_cast<std::size_t>(slices) * kOfEachSlice, chunk_limit(0, nodes),
                    kLongestChunk);
}

std::size_t plan_unit(std::span<const Signature* const> decided, std::size_t first,
                      const PlanLimits& limits, Unit& unit) {
  const Signature& leading = *decided[first];
  unit.kind = leading.kind;
  unit.type = leading.type;
  unit.op = leading.op;
  unit.device = leading.device;
  unit.root = leading.root;
  unit.prescale = leading.prescale;
  unit.postscale = leading.postscale;
  unit.tensors.clear();
  unit.bytes = 0;
  const auto alone = [&](std::size_t size) {
    return limits.alone_bytes > 0 && size >= limits.alone_bytes;
  };
  std::size_t next = first;
  for (; next < decided.size(); ++next) {
    const std::size_t bytes = decided[next]->bytes();
    if (next > first) {
      const bool joins = fuses(*decided[next - 1], *decided[next]) && !alone(bytes) &&
                         !alone(unit.tensors.back().range.bytes) &&
                         unit.bytes + align_up(bytes) <= limits.fusion_bytes;
      if (!joins) break;
    }
    unit.tensors.push_back({next, {unit.bytes, bytes}});
    unit.bytes += align_up(bytes);
  }
  // Adasum takes whole tensors together.
  const std::size_t limit = unit.op == ReduceOp::adasum ? 0 : limits.chunk_bytes;
  unit.chunk_bytes = chunk_length(unit.bytes, limit);
  return next;
}

bool is_followed(const Unit& unit) {
  return unit.kind == OperationKind::broadcast &&
         std::any_of(unit.tensors.begin(), unit.tensors.end(),
                     [](const UnitTensor& tensor) { return is_followed(tensor.range.bytes); });
}

Range chunk_range(const Unit& unit, std::size_t chunk) {
  const std::size_t begin = std::min(chunk * unit.chunk_bytes, unit.bytes);
  return {begin, std::min(unit.chunk_bytes, unit.bytes - begin)};
}

Range slice_range(Range chunk, int slice, int slices) {
  const auto count = static_cast<std::size_t>(slices);
  const std::size_t length = align_up((chunk.bytes + count - 1) / count);
  const std::size_t begin = std::min(static_cast<std::size_t>(slice) * length, chunk.bytes);
  return {chunk.begin + begin, std::min(length, chunk.bytes - begin)};
}

std::vector<Run> runs(const Unit& unit, Range range) {
  std::vector<Run> result;
  for_each_run(unit, range, [&](const Run& run) { result.push_back(run); });
  return result;
}

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
