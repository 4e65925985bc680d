#include "core/plan/plan.h"

#include <algorithm>

namespace hora::internal {
namespace {

/// Of those that are chosen: staging takes several.
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

std::vector<Unit> plan(std::span<const Signature* const> decided, const PlanLimits& limits) {
  std::vector<Unit> units;
  for (std::size_t next = 0; next < decided.size();) {
    next = plan_unit(decided, next, limits, units.emplace_back());
  }
  return units;
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

}  // namespace hora::internal
