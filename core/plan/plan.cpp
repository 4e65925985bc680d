#include "core/plan/plan.h"

#include <algorithm>

namespace hora::internal {
namespace {

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

std::vector<Unit> plan(std::span<const Signature* const> decided, const PlanLimits& limits) {
  std::vector<Unit> units;
  for (std::size_t i = 0; i < decided.size(); ++i) {
    const Signature& signature = *decided[i];
    const std::size_t bytes = signature.bytes();
    const auto alone = [&](std::size_t size) {
      return limits.alone_bytes > 0 && size >= limits.alone_bytes;
    };
    const bool joins = !units.empty() && fuses(*decided[i - 1], signature) && !alone(bytes) &&
                       !alone(decided[i - 1]->bytes()) &&
                       units.back().bytes + align_up(bytes) <= limits.fusion_bytes;
    if (!joins) {
      Unit& fresh = units.emplace_back();
      fresh.kind = signature.kind;
      fresh.type = signature.type;
      fresh.op = signature.op;
      fresh.device = signature.device;
      fresh.root = signature.root;
      fresh.prescale = signature.prescale;
      fresh.postscale = signature.postscale;
    }
    Unit& unit = units.back();
    unit.tensors.push_back({i, {unit.bytes, bytes}});
    unit.bytes += align_up(bytes);
  }
  for (Unit& unit : units) {
    // Adasum takes whole tensors together.
    const std::size_t limit = unit.op == ReduceOp::adasum ? 0 : limits.chunk_bytes;
    unit.chunk_bytes = chunk_length(unit.bytes, limit);
  }
  return units;
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
  const std::size_t end = range.begin + range.bytes;
  const auto first = std::partition_point(
      unit.tensors.begin(), unit.tensors.end(),
      [&](const UnitTensor& t) { return t.range.begin + t.range.bytes <= range.begin; });
  for (auto tensor = first; tensor != unit.tensors.end() && tensor->range.begin < end; ++tensor) {
    const std::size_t from = std::max(range.begin, tensor->range.begin);
    const std::size_t to = std::min(end, tensor->range.begin + tensor->range.bytes);
    if (from >= to) continue;
    result.push_back({static_cast<std::size_t>(tensor - unit.tensors.begin()),
                      {from - tensor->range.begin, to - from},
                      from - range.begin});
  }
  return result;
}

}  // namespace hora::internal
