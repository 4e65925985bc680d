/// Which bytes of an allgather, alltoall or reduce-scatter go from where to where. Pure.
///
/// A *row* is one step of the first dimension. What the ranks of node A give to the ranks of node B
/// is a *layout*: bytes in an order that both nodes know, so that any range of them can travel
/// without a description. A layout consists of *transfers*, each from one place to one place.
/// Nodes, ranks and local ranks are those of the set; the ranks of a node need not follow one
/// another.
#pragma once

#include <hora/error.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/base/checked.h"
#include "core/negotiation/topology.h"
#include "core/plan/plan.h"

namespace hora::internal {

/// What an exchange is, as soon as the extents of all ranks are known.
struct ExchangeExtents {
  OperationKind kind = OperationKind::allgather;
  std::size_t row_bytes = 0;
  /// By rank: as BoundExchange::rows.
  std::vector<std::span<const std::int64_t>> rows;
};

/// How many extents a rank has: alltoall: one for each rank, else one.
std::size_t extents_of_rank(OperationKind kind, int ranks);

/// The rows that a rank gets of a reduce-scatter of `rows` rows: rows / ranks, the first rows %
/// ranks ranks one more; rank r's begin where those of rank r - 1 end.
std::int64_t scattered_rows(std::int64_t rows, int ranks, int rank);
std::int64_t first_scattered_row(std::int64_t rows, int ranks, int rank);

/// The bytes that a rank with these extents gives to rank `to`: of alltoall and reduce-scatter;
/// empty of allgather, which gives all to every rank.
Range rows_to_rank(OperationKind kind, std::span<const std::int64_t> rows, int ranks, int to,
                   std::size_t row_bytes);

struct Transfer {
  /// As source: the sum over all local ranks of the node, each at source_offset. As destination:
  /// every local rank of the node, each at destination_offset.
  static constexpr int kAll = -1;
  int source = 0;  ///< local rank in the node that gives
  std::size_t source_offset = 0;
  int destination = 0;  ///< local rank in the node that gets
  std::size_t destination_offset = 0;
  Range range;  ///< in the layout
  bool operator==(const Transfer&) const = default;
};
/// Pieces that follow one another without a gap, from 0; none is empty.
using ByteLayout = std::vector<Transfer>;

std::size_t length_of(const ByteLayout& layout);
/// The part of the layout in `range` (its end may lie beyond the layout's), counted from the
/// range's first byte.
ByteLayout cut(const ByteLayout& layout, Range range);
/// For these a rank can write what it gives into the others' results.
bool may_push(OperationKind kind);

/// The transfers that this local rank moves, as a layout of their own: those that it pushes, and
/// those that come to it and that no rank pushes. `pushes`: by local rank, whether it moves what it
/// gives; empty: none does.
ByteLayout moved_by(int local_rank, const std::vector<bool>& pushes, const ByteLayout& layout);

/// As many rows from or to every rank, and at least one: what results are expected to be.
bool is_even(std::span<const std::int64_t> rows);

/// The bytes of every layout that travel in one round: a round moves about `chunk_bytes` out of a
/// node. A multiple of 64.
std::size_t round_bytes(std::size_t chunk_bytes, int nodes);

/// Offsets of rows and streams of one exchange. What the spans in `extents` point to outlives it,
/// and so does the topology. The one place where extents of all ranks come together: the
/// constructor throws Error(transport) for those of a rank that are invalid, and after it no sum
/// wraps, where there is no refusal().
class ExchangeMap {
 public:
  ExchangeMap(const Topology& topology, ExchangeExtents extents);

  /// Error(out_of_memory), the same on every rank, where the results of all ranks are more than the
  /// `memory` bytes that their nodes have together: nothing below is to be called then.
  std::optional<Error> refusal(std::uint64_t memory) const;

  /// alltoall: from rank to rank, sources first. reduce-scatter: the part of each destination.
  ByteLayout layout(int from_node, int to_node) const;
  /// Of all streams between two different nodes.
  std::size_t longest_stream() const;

  /// What ExchangeResult::allocate gets on that rank.
  std::vector<std::int64_t> result_rows(int rank) const;
  std::size_t result_bytes(int rank) const;

 private:
  ByteLayout gathered_layout(int from_node) const;
  ByteLayout alltoall_layout(int from_node, int to_node) const;
  ByteLayout scattered_layout(int to_node) const;
  std::size_t stream_bytes(int from_node, int to_node) const;
  const std::vector<int>& ranks_of(int node) const;
  std::int64_t rows(int from_rank, int to_rank) const;
  std::size_t bytes(std::int64_t rows) const;

  const Topology& topology_;
  ExchangeExtents extents_;
  int size_;
  Checked all_rows_;  ///< what all ranks say, added up
};

}  // namespace hora::internal
