/// From a batch of decided tensors to units of work: which tensors travel together, cut into chunks
/// and slices. Pure: the same on every rank.
///
/// Words: a *unit* is a run of decided tensors of one kind, type and operation, laid end to end,
/// each padded to 64 bytes ("unit bytes"). A *chunk* is a run of a unit's bytes, the step of the
/// pipeline. A *slice* is one local rank's part of a chunk; all slices of a chunk but the last ones
/// have equal length, a multiple of 64 bytes.
///
/// How the nodes' parts of a result become one.
#pragma once

#include <hora/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/checked.h"
#include "core/negotiation/signature.h"

namespace hora::internal {

/// Elements of `type` are taken together in node order, and the result is multiplied by `scale`
/// (floating-point types; skipped where it is 1).
struct Reduction {
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  double scale = 1.0;
};

/// In a job of one node a tensor of this size gains nothing by travelling with others.
inline constexpr std::size_t kAloneBytes = std::size_t{1} << 20;

/// In a job of one node, a broadcast from this size on (and below kAloneBytes) is read while its
/// root copies it to where it can be read.
inline constexpr std::size_t kFollowedBytes = std::size_t{1} << 17;
constexpr bool is_followed(std::size_t bytes) {
  return bytes >= kFollowedBytes && bytes < kAloneBytes;
}

/// Bytes [begin, begin + bytes) of a unit, a staging block or a tensor.
struct Range {
  std::size_t begin = 0;
  std::size_t bytes = 0;
  bool operator==(const Range&) const = default;
};

/// The upper bound of a chunk between `nodes` nodes: `setting` (HORA_CHUNK_SIZE), or where that is
/// 0 so much that what a node sends to each other one at a time is not below 32 KiB (a message
/// costs its sender and its receiver about 1 us each; 100 Gbit/s take 2.6 us for so much), but no
/// less than 1 MiB and, since staging takes several chunks, no more than 32 MiB.
std::size_t chunk_limit(std::size_t setting, int nodes);
/// The same of broadcasts, which each node sends on whole: where it is chosen 512 KiB, so that
/// nodes receive and send at once.
std::size_t broadcast_chunk_limit(std::size_t setting);
/// The same of units on devices, whose chunks each of a node's `slices` ranks stages apart: where
/// it is chosen, a slice may have 2 MiB, since each is a launch of NCCL, two copies over the bus
/// and a message, but the chunk no more than 32 MiB.
std::size_t device_chunk_limit(std::size_t setting, int nodes, int slices);

struct PlanLimits {
  std::size_t fusion_bytes = 0;  ///< a unit of several tensors is at most this long
  std::size_t alone_bytes = 0;   ///< a tensor of this size is a unit of its own; 0: none is
  std::size_t chunk_bytes = 0;   ///< upper bound of a chunk; 0: a unit is one chunk
};

/// One tensor of a unit: where it begins in unit bytes, and its true length (not padded).
struct UnitTensor {
  std::size_t index = 0;  ///< position in the decided batch
  Range range;
  bool operator==(const UnitTensor&) const = default;
};

struct Unit {
  OperationKind kind = OperationKind::allreduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  DeviceKind device = DeviceKind::cpu;
  int root = 0;  ///< world rank, of broadcasts
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<UnitTensor> tensors;
  std::size_t bytes = 0;        ///< padded length
  std::size_t chunk_bytes = 0;  ///< length of every chunk but the last; a multiple of 64
  bool operator==(const Unit&) const = default;

  std::size_t chunks() const { return bytes == 0 ? 0 : (bytes + chunk_bytes - 1) / chunk_bytes; }
  /// It runs whole.
  void make_one_chunk() { chunk_bytes = std::max(bytes, kAlignment); }
};

/// Cuts a decided batch into units, in its order: neighbours of equal kind, type, op, root, scale
/// and device are fused while the unit stays within the fusion threshold. A tensor longer than
/// that, or of alone_bytes, is a unit of its own. A unit of zero bytes (barriers, empty tensors)
/// has no chunk.
std::vector<Unit> plan(std::span<const Signature* const> decided, const PlanLimits& limits);
/// The unit that begins with tensor `first` of the batch, into `unit`, whose memory is used again.
/// Returns the first tensor of the next one.
std::size_t plan_unit(std::span<const Signature* const> decided, std::size_t first,
                      const PlanLimits& limits, Unit& unit);

/// A broadcast with such a tensor: ranks read the unit as far as its root says (UnitProgress).
bool is_followed(const Unit& unit);

Range chunk_range(const Unit& unit, std::size_t chunk);
/// Slice `slice` of `slices` of that chunk; may be empty at a short chunk's end.
Range slice_range(Range chunk, int slice, int slices);

/// A run of one tensor's bytes that lies in a range of the unit.
struct Run {
  std::size_t tensor = 0;  ///< position in Unit::tensors
  Range range;             ///< within the tensor
  std::size_t offset = 0;  ///< of the run's first byte from the range's first byte
  bool operator==(const Run&) const = default;
};
/// The tensors' bytes in `range`, padding left out, in order: calls body(const Run&) for each.
template <class Body>
void for_each_run(const Unit& unit, Range range, Body&& body) {
  const std::size_t end = range.begin + range.bytes;
  const auto first = std::partition_point(
      unit.tensors.begin(), unit.tensors.end(),
      [&](const UnitTensor& t) { return t.range.begin + t.range.bytes <= range.begin; });
  for (auto tensor = first; tensor != unit.tensors.end() && tensor->range.begin < end; ++tensor) {
    const std::size_t from = std::max(range.begin, tensor->range.begin);
    const std::size_t to = std::min(end, tensor->range.begin + tensor->range.bytes);
    if (from >= to) continue;
    body(Run{static_cast<std::size_t>(tensor - unit.tensors.begin()),
             {from - tensor->range.begin, to - from},
             from - range.begin});
  }
}
/// The same as a list.
std::vector<Run> runs(const Unit& unit, Range range);

}  // namespace hora::internal
