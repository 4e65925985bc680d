/// Allreduce between nodes: every node owns the sum of one segment; and for short data: every node
/// gets all parts, then sums them.
#include <hora/types.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/plan/plan.h"
#include "ops/cross/cross_group.h"

namespace hora::internal {
namespace {

constexpr int kDirectScatter = 0;
constexpr int kDirectGather = 1;

/// The staging is cut into one segment a node (multiples of 64 bytes, the last ones possibly
/// empty). Each is sent to its owner, which sums in node order, its own part in its place, and
/// sends the sum to all. 2 (n-1)/n of the staging leaves and enters each node, the least that is
/// possible, in two steps; 2 (n-1) messages a node, each 1/n long. Every element is summed in one
/// and the same order, wherever it lies. Thread rule: as CrossGroup.
class DirectAllreduce : public AllreduceWork {
 public:
  DirectAllreduce(CrossResources& resources, const Reduction& reduction,
                  std::span<std::byte> staging, std::uint64_t sequence)
      : AllreduceWork(resources, reduction, staging, sequence) {
    Workspace& work = workspace();
    const std::span<std::byte> own = segment(index_);
    std::byte* incoming = work.buffer.reserve(work_bytes(staging_.size(), members_));
    work.inputs.resize(static_cast<std::size_t>(members_));
    work.inputs[static_cast<std::size_t>(index_)] = own.data();
    for (int k = 1; k < members_; ++k) {
      const int from = peer(members_ - k);  // the peer that begins with this member comes first
      receive(work.receives, from, kDirectScatter, {incoming, own.size()});
      work.inputs[static_cast<std::size_t>(from)] = incoming;
      incoming += own.size();
    }
    for (int k = 1; k < members_; ++k) send(work.sends, peer(k), kDirectScatter, segment(peer(k)));
  }
  bool poll() override {
    Workspace& work = workspace();
    post_gather_receives();
    if (!summed_) {
      if (!sum_my_segment()) return false;
      send_sum();
      summed_ = true;
    }
    if (!work.sends.all_completed() || !work.gather_receives.drained(link()) ||
        !work.gather_sends.drained(link())) {
      return false;
    }
    return finish();
  }

  /// Memory that an operation works in, beside its staging.
  static std::size_t work_bytes(std::size_t staging_bytes, int members) {
    return slice_range({0, staging_bytes}, 0, members).bytes *
           static_cast<std::size_t>(members - 1);
  }

 private:
  std::span<std::byte> segment(int member) const {
    const Range range = slice_range({0, staging_.size()}, member, members_);
    return staging_.subspan(range.begin, range.bytes);
  }
  /// The k-th peer, k in [1, n): each member begins with another one.
  int peer(int k) const { return (index_ + k) % members_; }
  // A peer's sum arrives where its segment was sent from: not before MPI has read it.
  void post_gather_receives() {
    Workspace& work = workspace();
    while (work.sends.next_completed(link())) {
      const int from = peer(static_cast<int>(work.sends.completed()));
      receive(work.gather_receives, from, kDirectGather, segment(from));
    }
  }
  bool sum_my_segment() {
    if (!summing_) {
      if (!workspace().receives.drained(link())) return false;
      const std::span<std::byte> own = segment(index_);
      sum_ = space().reduce(reduction_, workspace().inputs, own.data(),
                            own.size() / size_of(reduction_.type));
      summing_ = true;
    }
    return sum_.poll();
  }
  void send_sum() {
    for (int k = 1; k < members_; ++k) {
      send(workspace().gather_sends, peer(k), kDirectGather, segment(index_));
    }
  }

  bool summing_ = false;
  bool summed_ = false;
  Completion sum_;
};

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
class DisseminationAllreduce : public AllreduceWork {
 public:
  DisseminationAllreduce(CrossResources& resources, const Reduction& reduction,
                         std::span<std::byte> staging, std::uint64_t sequence)
      : AllreduceWork(resources, reduction, staging, sequence),
        gathered_(workspace().buffer.reserve(work_bytes(staging.size(), members_))) {
    for (int distance = 1; distance < members_; distance *= 2) {
      receive(workspace().receives, (index_ + distance) % members_, kDissemination,
              blocks(distance, count_at(distance)));
    }
    const std::array<const std::byte*, 1> own{staging_.data()};
    copy_ = space().reduce({.type = reduction_.type}, own, gathered_,
                           staging_.size() / size_of(reduction_.type));
  }
  bool poll() override {
    return copy_own() && gather() && workspace().sends.drained(link()) && sum_.poll() && finish();
  }

  /// Memory that an operation works in, beside its staging.
  static std::size_t work_bytes(std::size_t staging_bytes, int members) {
    return staging_bytes * static_cast<std::size_t>(members);
  }

 private:
  /// `count` blocks from the first-th on; block k is the staging of member index_ + k.
  std::span<std::byte> blocks(int first, int count) const {
    return {gathered_ + static_cast<std::size_t>(first) * staging_.size(),
            static_cast<std::size_t>(count) * staging_.size()};
  }
  /// Blocks that travel in the round of this distance (1, 2, 4, ..): those that are there, or those
  /// that are missing.
  int count_at(int distance) const { return std::min(distance, members_ - distance); }
  void send_round() {
    send(workspace().sends, (index_ + members_ - distance_) % members_, kDissemination,
         blocks(0, count_at(distance_)));
  }
  bool copy_own() {
    if (!copied_) {
      if (!copy_.poll()) return false;
      copied_ = true;
      send_round();
    }
    return true;
  }
  bool gather() {
    while (distance_ < members_) {
      if (!workspace().receives.next_completed(link())) return false;
      distance_ *= 2;
      if (distance_ < members_) {
        send_round();
      } else {
        start_sum();
      }
    }
    return true;
  }
  void start_sum() {
    auto& inputs = workspace().inputs;
    inputs.resize(static_cast<std::size_t>(members_));
    for (int member = 0; member < members_; ++member) {
      inputs[static_cast<std::size_t>(member)] =
          blocks((member - index_ + members_) % members_, 1).data();
    }
    sum_ = space().reduce(reduction_, inputs, staging_.data(),
                          staging_.size() / size_of(reduction_.type));
  }

  std::byte* gathered_;
  Completion copy_;  // of this member's staging into its block
  bool copied_ = false;
  int distance_ = 1;  // of the round under way
  Completion sum_;
};

}  // namespace

constexpr AllreduceAlgorithm kDirectAllreduce{"direct", DirectAllreduce::work_bytes,
                                              start_allreduce<DirectAllreduce>};

constexpr AllreduceAlgorithm kDisseminationAllreduce{
    "dissemination", DisseminationAllreduce::work_bytes, start_allreduce<DisseminationAllreduce>};

}  // namespace hora::internal
