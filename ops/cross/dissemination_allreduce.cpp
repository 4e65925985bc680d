/// Allreduce between nodes for short data: every node gets all parts, then sums them.
#include <hora/types.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/cross/cross_work.h"

namespace hora::internal {
namespace {

// One phase is enough: the distances of the rounds differ and are less than n, so a pair of members
// exchanges one message in each direction at most.
constexpr int kDissemination = 0;

/// All-gather of every node's staging by dissemination, ceil(log2 n) rounds (Bruck, Ho, Kipnis,
/// Upfal, Weathersby: Efficient Algorithms for All-to-All Communications in Multiport
/// Message-Passing Systems, IEEE TPDS 8(11), 1997, section 3); then each node sums in node order.
///
/// The classic for short data is recursive doubling (Thakur, Rabenseifner, Gropp: Optimization of
/// Collective Communication Operations in MPICH, IJHPCA 19(1), 2005): as many rounds and less data,
/// but it adds in the order of its tree. This one gives the bits of DirectAllreduce, so that a
/// result does not depend on how much was fused. Thread rule: as CrossGroup.
class DisseminationAllreduce : public CrossWork {
 public:
  DisseminationAllreduce(CrossResources& resources, const Reduction& reduction,
                         std::span<std::byte> staging, std::uint64_t sequence);
  bool poll() override;

  /// Memory that an operation works in, beside its staging.
  static std::size_t work_bytes(std::size_t staging_bytes, int members);

 private:
  /// `count` blocks from the first-th on; block k is the staging of member index_ + k.
  std::span<std::byte> blocks(int first, int count) const;
  /// Blocks that travel in the round of this distance (1, 2, 4, ..): those that are there, or those
  /// that are missing.
  int count_at(int distance) const;
  void send_round();
  bool copy_own();
  bool gather();
  void start_sum();

  Reduction reduction_;
  std::span<std::byte> staging_;
  int index_;
  int members_;
  std::byte* gathered_;
  Completion copy_;  // of this member's staging into its block
  bool copied_ = false;
  int distance_ = 1;  // of the round under way
  Completion sum_;
};

DisseminationAllreduce::DisseminationAllreduce(CrossResources& resources,
                                               const Reduction& reduction,
                                               std::span<std::byte> staging, std::uint64_t sequence)
    : CrossWork(resources, sequence),
      reduction_(reduction),
      staging_(staging),
      index_(link().index()),
      members_(link().size()),
      gathered_(workspace().buffer.reserve(work_bytes(staging.size(), members_))) {
  for (int distance = 1; distance < members_; distance *= 2) {
    receive(workspace().receives, (index_ + distance) % members_, kDissemination,
            blocks(distance, count_at(distance)));
  }
  const std::array<const std::byte*, 1> own{staging_.data()};
  copy_ = space().reduce({.type = reduction_.type}, own, gathered_,
                         staging_.size() / size_of(reduction_.type));
}

std::size_t DisseminationAllreduce::work_bytes(std::size_t staging_bytes, int members) {
  return staging_bytes * static_cast<std::size_t>(members);
}

std::span<std::byte> DisseminationAllreduce::blocks(int first, int count) const {
  return {gathered_ + static_cast<std::size_t>(first) * staging_.size(),
          static_cast<std::size_t>(count) * staging_.size()};
}

int DisseminationAllreduce::count_at(int distance) const {
  return std::min(distance, members_ - distance);
}

void DisseminationAllreduce::send_round() {
  send(workspace().sends, (index_ + members_ - distance_) % members_, kDissemination,
       blocks(0, count_at(distance_)));
}

bool DisseminationAllreduce::copy_own() {
  if (!copied_) {
    if (!copy_.poll()) {
      return false;
    }
    copied_ = true;
    send_round();
  }
  return true;
}

bool DisseminationAllreduce::gather() {
  while (distance_ < members_) {
    if (!workspace().receives.next_completed(link())) {
      return false;
    }
    distance_ *= 2;
    if (distance_ < members_) {
      send_round();
    } else {
      start_sum();
    }
  }
  return true;
}

bool DisseminationAllreduce::poll() {
  return copy_own() && gather() && workspace().sends.drained(link()) && sum_.poll() && finish();
}

void DisseminationAllreduce::start_sum() {
  auto& inputs = workspace().inputs;
  inputs.resize(static_cast<std::size_t>(members_));
  for (int member = 0; member < members_; ++member) {
    inputs[static_cast<std::size_t>(member)] =
        blocks((member - index_ + members_) % members_, 1).data();
  }
  sum_ = space().reduce(reduction_, inputs, staging_.data(),
                        staging_.size() / size_of(reduction_.type));
}

}  // namespace

constexpr AllreduceAlgorithm kDisseminationAllreduce{
    "dissemination", DisseminationAllreduce::work_bytes, start_allreduce<DisseminationAllreduce>};

}  // namespace hora::internal
