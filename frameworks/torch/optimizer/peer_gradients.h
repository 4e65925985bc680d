/// Where the ranks of a node have their gradients in a round that the pass which updates averages:
/// in the bucket, or where autograd has put them, each rank as it likes.
#pragma once

#include <cstddef>
#include <vector>

#include "frameworks/torch/optimizer/gradient_buckets.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// Consecutive bytes of one gradient, in its memory order.
struct GradientPiece {
  std::size_t bucket = 0;
  std::size_t place = 0;
  std::size_t begin = 0;  ///< from the gradient's first byte on
  std::size_t bytes = 0;
};

/// Thread rule: one thread at a time.
class PeerGradients {
 public:
  /// Collective. `buckets` outlive it.
  PeerGradients(const Peers& peers, const GradientBuckets& buckets);

  /// The piece in each rank's memory, by rank in the set: after the sum of a round's lanes, until
  /// that rank gives its gradients back. Throws Error(transport) where a rank's memory cannot be
  /// reached.
  std::vector<const std::byte*> find(const GradientPiece& piece) const;

 private:
  const Peers peers_;
  const GradientBuckets& buckets_;
  const std::vector<int> members_;                     ///< world ranks
  std::vector<std::vector<const std::byte*>> begins_;  ///< by bucket and rank in the set
};

}  // namespace hora::internal
