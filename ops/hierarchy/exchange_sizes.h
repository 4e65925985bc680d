/// What the nodes of an allgather or alltoall tell one another before its data can be received.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/negotiation/topology.h"
#include "core/plan/bound_unit.h"
#include "core/plan/exchange.h"

namespace hora::internal {

/// The first round of an allgather or alltoall: the nodes send one another their ranks' extents.
/// They travel as they are in memory: rank after rank, in the order of local ranks.
/// References outlive it. Thread rule: one thread at a time.
class ExchangeSizes {
 public:
  ExchangeSizes(const BoundUnit& unit, const Topology& topology, int node);

  /// False: a reduce-scatter, or all ranks are in this node.
  bool must_be_exchanged() const;
  /// Length of what a node sends; what comes from node n belongs at n * stride().
  std::size_t bytes_of(int node) const;
  std::size_t stride() const;
  /// What this node sends.
  void write(std::byte* out) const;
  /// Takes in what all other nodes have sent.
  void read(const std::byte* in);

  /// Of all ranks, once read or where nothing has to be sent. Valid as long as this.
  ExchangeExtents extents() const;
  /// Of this node's ranks; the others' are zeros. Likewise.
  ExchangeExtents own_extents() const;

 private:
  template <class RowsOf>
  ExchangeExtents extents_by(RowsOf&& rows_of_other_node) const;
  const std::vector<int>& ranks_of(int node) const;
  bool is_exchanged(int node) const { return node != node_ && must_be_exchanged(); }

  const BoundUnit& unit_;
  const Topology& topology_;
  int node_;
  std::size_t each_;                                ///< extents of one rank
  std::vector<std::vector<std::int64_t>> of_node_;  ///< of those that are sent
  std::vector<std::int64_t> none_;                  ///< of a rank that brings nothing
};

}  // namespace hora::internal
