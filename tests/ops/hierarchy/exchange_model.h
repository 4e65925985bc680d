/// Exchanges as values, and what comes of them by their definitions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/negotiation/signature.h"
#include "core/negotiation/topology.h"
#include "tests/support/reference/reference.h"

namespace hora::internal::test {

/// A rank, node or member as an index.
inline std::size_t at(int number) {
  return static_cast<std::size_t>(number);
}

/// An exchange, or an allreduce beside it, of all ranks.
struct ExchangeOperation {
  OperationKind kind = OperationKind::allgather;
  DataType type = DataType::float32;
  double prescale = 1.0;  ///< a power of two: exact, before the sum or after
  double scale = 1.0;
  std::size_t row_bytes = 0;
  std::vector<std::vector<std::int64_t>> rows;  ///< by rank; see BoundExchange
  std::vector<Bytes> inputs;                    ///< by rank
  /// By rank, in one node: it pushes; it has a place for an even result.
  std::vector<bool> pushes, expects;

  /// By the operation's definition. Sums: over each node, rounded, then over the nodes.
  Exchanged expected(const Topology& topology, int rank) const;
};

/// Of random sizes, zero among them. `most_rows` of one rank (or for one rank).
ExchangeOperation random_exchange(OperationKind kind, int ranks, std::int64_t most_rows,
                                  std::mt19937_64& random);
/// The allreduce that this reduce-scatter is a part of.
ExchangeOperation allreduce_of(const ExchangeOperation& reduce_scatter);

}  // namespace hora::internal::test
