/// Allreduce between nodes: every node owns the sum of one segment.
#include <hora/types.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/plan/plan.h"
#include "ops/cross/cross_work.h"

namespace hora::internal {
namespace {

constexpr int kDirectScatter = 0;
constexpr int kDirectGather = 1;

/// The staging is cut into one segment a node (multiples of 64 bytes, the last ones possibly
/// empty). Each is sent to its owner, which sums in node order, its own part in its place, and
/// sends the sum to all. 2 (n-1)/n of the staging leaves and enters each node, the least that is
/// possible, in two steps; 2 (n-1) messages a node, each 1/n long. Every element is summed in one
/// and the same order, wherever it lies. Thread rule: as CrossGroup.
class DirectAllreduce : public CrossWork {
 public:
  DirectAllreduce(CrossResources& resources, const Reduction& reduction,
                  std::span<std::byte> staging, std::uint64_t sequence);
  bool poll() override;

  /// Memory that an operation works in, beside its staging.
  static std::size_t work_bytes(std::size_t staging_bytes, int members);

 private:
  std::span<std::byte> segment(int member) const;
  /// The k-th peer, k in [1, n): each member begins with another one.
  int peer(int k) const { return (index_ + k) % members_; }
  void post_gather_receives();
  bool sum_my_segment();
  void send_sum();

  Reduction reduction_;
  std::span<std::byte> staging_;
  int index_;
  int members_;
  bool summing_ = false;
  bool summed_ = false;
  Completion sum_;
};

DirectAllreduce::DirectAllreduce(CrossResources& resources, const Reduction& reduction,
                                 std::span<std::byte> staging, std::uint64_t sequence)
    : CrossWork(resources, sequence),
      reduction_(reduction),
      staging_(staging),
      index_(link().index()),
      members_(link().size()) {
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
  for (int k = 1; k < members_; ++k) {
    send(work.sends, peer(k), kDirectScatter, segment(peer(k)));
  }
}

std::size_t DirectAllreduce::work_bytes(std::size_t staging_bytes, int members) {
  return slice_range({0, staging_bytes}, 0, members).bytes * static_cast<std::size_t>(members - 1);
}

std::span<std::byte> DirectAllreduce::segment(int member) const {
  const Range range = slice_range({0, staging_.size()}, member, members_);
  return staging_.subspan(range.begin, range.bytes);
}

// A peer's sum arrives where its segment was sent from: not before MPI has read it.
void DirectAllreduce::post_gather_receives() {
  Workspace& work = workspace();
  while (work.sends.next_completed(link())) {
    const int from = peer(static_cast<int>(work.sends.completed()));
    receive(work.gather_receives, from, kDirectGather, segment(from));
  }
}

bool DirectAllreduce::sum_my_segment() {
  if (!summing_) {
    if (!workspace().receives.drained(link())) {
      return false;
    }
    const std::span<std::byte> own = segment(index_);
    sum_ = space().reduce(reduction_, workspace().inputs, own.data(),
                          own.size() / size_of(reduction_.type));
    summing_ = true;
  }
  return sum_.poll();
}

void DirectAllreduce::send_sum() {
  for (int k = 1; k < members_; ++k) {
    send(workspace().gather_sends, peer(k), kDirectGather, segment(index_));
  }
}

bool DirectAllreduce::poll() {
  Workspace& work = workspace();
  post_gather_receives();
  if (!summed_) {
    if (!sum_my_segment()) {
      return false;
    }
    send_sum();
    summed_ = true;
  }
  if (!work.sends.all_completed() || !work.gather_receives.drained(link()) ||
      !work.gather_sends.drained(link())) {
    return false;
  }
  return finish();
}

}  // namespace

constexpr AllreduceAlgorithm kDirectAllreduce{"direct", DirectAllreduce::work_bytes,
                                              start_allreduce<DirectAllreduce>};

}  // namespace hora::internal
