/// What the ranks of a set of several nodes bring to an allgather or alltoall.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/negotiation/topology.h"
#include "core/plan/exchange.h"
#include "core/plan/plan.h"

namespace hora::internal {

/// The first round of an allgather or alltoall which brings other extents than its last run: the
/// nodes send one another their ranks' extents. They travel as they are in memory: rank after rank,
/// in the order of local ranks. References outlive it. Thread rule: one thread at a time.
class ExchangeSizes {
 public:
  /// Throws Error(transport) where a run repeats what this rank does not know.
  ExchangeSizes(const BoundUnit& unit, const Topology& topology, int node);

  /// False: a reduce-scatter, all ranks are in this node, or the unit repeats.
  bool must_be_exchanged() const { return come_from_others() && !unit_.exchange.repeats; }
  /// Length of what a node sends; what comes from node n belongs at n * stride().
  std::size_t bytes_of(int node) const;
  std::size_t stride() const;
  /// What this node sends.
  void write(std::byte* out) const;
  /// Takes in what all other nodes have sent.
  void read(const std::byte* in);

  /// Of all ranks, once read or where nothing has to be sent. Valid until end_run().
  ExchangeExtents extents() const;
  /// What extents() has given is not used any more.
  void end_run() { last_->end_run(); }

 private:
  const std::vector<int>& ranks_of(int node) const;
  bool come_from_others() const;

  const BoundUnit& unit_;
  const Topology& topology_;
  int node_;
  std::size_t each_;  ///< extents of one rank
  std::shared_ptr<LastExtents> last_;
};

}  // namespace hora::internal
