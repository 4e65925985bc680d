/// The properties that all ranks must agree on before a tensor is transferred, and which
/// collectives run on the device. Pure: the same on every rank.
#pragma once

#include <hora/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/checked.h"

namespace hora::internal {

/// The numbers are part of the wire format: append, never reorder.
enum class OperationKind : std::uint8_t {
  allreduce = 0,
  broadcast = 1,
  barrier = 2,
  allgather = 3,
  alltoall = 4,
  reduce_scatter = 5,
  add_process_set = 6,     ///< shape: its world ranks
  remove_process_set = 7,  ///< shape: {its number}
  join = 8,                ///< of a rank that has joined, in disagreements
};
template <>
inline constexpr OperationKind last_of<OperationKind> = OperationKind::join;
std::string_view name_of(OperationKind kind) noexcept;

/// Operations whose result differs by rank, and is memory of its own (core/plan/plan.h).
constexpr bool is_exchange(OperationKind kind) {
  return kind == OperationKind::allgather || kind == OperationKind::alltoall ||
         kind == OperationKind::reduce_scatter;
}

/// Exchanges to which each rank may bring other extents.
constexpr bool extents_may_differ(OperationKind kind) {
  return is_exchange(kind) && kind != OperationKind::reduce_scatter;
}

/// Operations that a rank which has joined takes part in, with nothing.
constexpr bool allows_joined(OperationKind kind) {
  return kind == OperationKind::allreduce;
}

constexpr bool changes_sets(OperationKind kind) {
  return kind == OperationKind::add_process_set || kind == OperationKind::remove_process_set;
}

/// The first extent in a signature where it may differ by rank.
inline constexpr std::int64_t kAnyExtent = -1;

/// A rank's submission under a name.
struct Signature {
  OperationKind kind = OperationKind::allreduce;
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  DeviceKind device = DeviceKind::cpu;
  std::int32_t root = 0;
  Shape shape = {};
  double prescale = 1.0;   ///< of each rank's values, of reductions
  double postscale = 1.0;  ///< of the result
  bool operator==(const Signature&) const = default;

  /// Bytes of the tensor; 0 where there is none, and for exchanges.
  std::size_t bytes() const;
  /// Bytes of all dimensions but the first.
  std::size_t row_bytes() const;
};

/// "allreduce float32 [3, 4] average on cpu", for errors and logs.
std::string to_string(const Signature& signature);

/// False: through host memory: NCCL has no 16-bit integers and no Adasum, and exchanges need one
/// communicator of all ranks (`one_group`: one node, or SetParts::device_spans_nodes).
constexpr bool runs_on_device(const Signature& signature, bool one_group) {
  if (signature.device == DeviceKind::cpu) return false;
  const bool reduces =
      signature.kind == OperationKind::allreduce || signature.kind == OperationKind::reduce_scatter;
  const bool of_16_bits = signature.type == DataType::int16 || signature.type == DataType::uint16;
  if (reduces && (of_16_bits || signature.op == ReduceOp::adasum)) return false;
  return !is_exchange(signature.kind) || one_group;
}

}  // namespace hora::internal
