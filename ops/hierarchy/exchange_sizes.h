/// The first round of an allgather or alltoall: the nodes tell one another their ranks' extents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/negotiation/topology.h"
#include "core/plan/bound_unit.h"
#include "core/plan/exchange.h"

namespace hora {

/// Nodes' extents travel as they are in memory: rank after rank, in the order of local ranks.
/// References outlive it. Thread rule: one thread at a time.
class ExchangeSizes {
 public:
  ExchangeSizes(const BoundUnit& unit, const Topology& topology, int node);

  /// False: a reduce-scatter, or all ranks are in my node.
  bool must_be_told() const;
  /// Length of what a node tells; what comes from node n belongs at n * stride().
  std::size_t bytes_of(int node) const;
  std::size_t stride() const;
  /// What my node tells.
  void write(std::byte* out) const;
  /// Takes in what all other nodes have told.
  void read(const std::byte* in);

  /// Of all ranks, once read or where nothing is to be told. Valid as long as this.
  ExchangeExtents extents() const;

 private:
  const std::vector<int>& ranks_of(int node) const;
  bool is_told(int node) const { return node != node_ && must_be_told(); }

  const BoundUnit& unit_;
  const Topology& topology_;
  int node_;
  std::size_t each_;                                ///< extents of one rank
  std::vector<std::vector<std::int64_t>> of_node_;  ///< of those that are told
};

}  // namespace hora
