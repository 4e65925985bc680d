/// How far the ranks of a node are in updating buckets, while backward goes on: without a
/// collective, for nobody waits for it.
#pragma once

#include <hora/buffer.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "frameworks/torch/peers.h"

namespace hora::internal {

/// A counter for each bucket, in memory that the ranks share. Each rank updates each bucket equally
/// often. Thread rule: one thread at a time.
class UpdateCounts {
 public:
  /// Collective, under `name`. The ranks share_memory().
  UpdateCounts(const Peers& peers, const std::string& name, std::size_t buckets);

  /// This rank has updated its part of the bucket once more: what it has read and written for that
  /// comes before.
  void note(std::size_t bucket);
  /// Whether all ranks have updated it as often as this one: what the caller does next comes after
  /// all that they have read and written for it.
  bool noted_by_all(std::size_t bucket) const;

 private:
  Buffer memory_;
  std::vector<std::uint64_t*> counters_;  ///< by rank in the set, of the first bucket
  std::uint64_t* own_ = nullptr;
};

}  // namespace hora::internal
