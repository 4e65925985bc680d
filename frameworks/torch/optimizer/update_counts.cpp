#include "frameworks/torch/optimizer/update_counts.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/api/internals.h"

namespace hora::internal {

UpdateCounts::UpdateCounts(const Peers& peers, const std::string& name, std::size_t buckets)
    : memory_(peers.context, buckets * sizeof(std::uint64_t)) {
  std::memset(memory_.data(), 0, memory_.size());  // before others learn where it is
  for (std::byte* address :
       peer_addresses(peers.context, peers.set, name, memory_.data(), memory_.size())) {
    counters_.push_back(reinterpret_cast<std::uint64_t*>(address));
  }
  own_ = counters_[static_cast<std::size_t>(peers.rank_in_set)];
}

void UpdateCounts::note(std::size_t bucket) {
  std::atomic_ref(own_[bucket]).fetch_add(1, std::memory_order_release);
}

bool UpdateCounts::noted_by_all(std::size_t bucket) const {
  const std::uint64_t own = std::atomic_ref(own_[bucket]).load(std::memory_order_relaxed);
  return std::all_of(counters_.begin(), counters_.end(), [&](std::uint64_t* of_rank) {
    return std::atomic_ref(of_rank[bucket]).load(std::memory_order_acquire) >= own;
  });
}

}  // namespace hora::internal
