/// A collective, whether ranks agree about it, and what it does: on values.
#pragma once

#include <hora/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "ops/nccl/functions.h"

namespace hora::internal::test {

enum class CollectiveKind { all_reduce, reduce_scatter, all_gather, broadcast, reduce, send, recv };

/// The name of the member of NcclFunctions.
const char* name_of(CollectiveKind kind);

/// One rank's part.
struct Collective {
  CollectiveKind kind = CollectiveKind::all_reduce;
  const void* send = nullptr;
  void* receive = nullptr;
  std::size_t count = 0;  ///< as the call's argument: per rank for reduce_scatter and all_gather
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;  ///< of send and recv: the peer
  int rank = 0;
  int ranks = 1;
  std::string windows = {};  ///< where its memory lies, if in any (FakeNccl::windows_of)

  std::size_t send_bytes() const;
  std::size_t receive_bytes() const;
  /// Between two ranks alone.
  bool is_transfer() const { return kind == CollectiveKind::send || kind == CollectiveKind::recv; }
  /// "all_reduce of 5 float32, sum".
  std::string text() const;
};

std::optional<DataType> from_nccl(ncclDataType_t type);
std::optional<ReduceOp> from_nccl(ncclRedOp_t op);

/// Says how ranks disagree; empty where they do not. Parts by rank.
std::string disagreement(std::span<const Collective> parts);

/// Reduces in rank order, rounded as hora::reduce does (also where a NaN is among minima and
/// maxima, which NCCL leaves out).
void perform(std::span<const Collective> parts);

}  // namespace hora::internal::test
