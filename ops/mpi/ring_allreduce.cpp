#include "ops/mpi/ring_allreduce.h"

#include <array>

#include "core/plan/plan.h"

namespace hora {
namespace {

// Steps of one half share a phase: both neighbours start them in the order of the steps.
constexpr int kReduce = 0;
constexpr int kGather = 1;

}  // namespace

// Step t of the reduce-scatter sends segment me-1-t and receives segment me-2-t; step t of the
// all-gather sends segment me-t and receives segment me-1-t. What is received in one step is sent
// in the next.
RingAllreduce::RingAllreduce(CrossResources& resources, const Reduction& reduction,
                             std::span<std::byte> staging, std::uint64_t sequence)
    : CrossWork(resources, sequence),
      reduction_(reduction),
      staging_(staging),
      me_(link().index()),
      members_(link().size()),
      steps_(members_ - 1),
      left_((me_ + members_ - 1) % members_),
      right_((me_ + 1) % members_),
      longest_segment_(slice_range({0, staging.size()}, 0, members_).bytes),
      buffer_(workspace().buffer.reserve(work_bytes(staging.size(), members_))) {
  receive_step(0);
  if (steps_ > 1) {
    receive_step(1);
  }
  send(workspace().sends, right_, kReduce, segment_back(1));
}

std::size_t RingAllreduce::work_bytes(std::size_t staging_bytes, int members) {
  return 2 * slice_range({0, staging_bytes}, 0, members).bytes;
}

std::span<std::byte> RingAllreduce::segment_back(int steps) const {
  const int segment = (me_ + 2 * members_ - steps) % members_;
  const Range range = slice_range({0, staging_.size()}, segment, members_);
  return staging_.subspan(range.begin, range.bytes);
}

std::span<std::byte> RingAllreduce::incoming(int step) {
  return {buffer_ + static_cast<std::size_t>(step % 2) * longest_segment_,
          segment_back(step + 2).size()};
}

void RingAllreduce::receive_step(int step) {
  receive(workspace().receives, left_, kReduce, incoming(step));
}

// The sum of a segment comes to where its partial sum was sent from: not before MPI has read it.
void RingAllreduce::post_gather_receives() {
  Workspace& work = workspace();
  while (work.sends.next_completed(link())) {
    receive(work.gather_receives, left_, kGather,
            segment_back(static_cast<int>(work.sends.completed())));
  }
}

void RingAllreduce::start_adding(int step) {
  const std::span<std::byte> mine = segment_back(step + 2);
  const std::array<const std::byte*, 2> inputs{incoming(step).data(), mine.data()};
  Reduction reduction = reduction_;
  if (step < steps_ - 1) reduction.scale = 1.0;
  sum_ = space().reduce(reduction, inputs, mine.data(), mine.size() / size_of(reduction.type));
  adding_ = true;
}

/// The step's sum is there: it goes to the next member, and its memory takes another segment.
void RingAllreduce::go_on() {
  Workspace& work = workspace();
  adding_ = false;
  if (reduced_ + 2 < steps_) {
    receive_step(reduced_ + 2);
  }
  ++reduced_;
  if (reduced_ < steps_) {
    send(work.sends, right_, kReduce, segment_back(reduced_ + 1));
  } else {
    send(work.gather_sends, right_, kGather, segment_back(0));
  }
}

bool RingAllreduce::reduce_scatter() {
  while (reduced_ < steps_) {
    if (!adding_) {
      if (!workspace().receives.next_completed(link())) {
        return false;
      }
      start_adding(reduced_);
    }
    if (!sum_.poll()) {
      return false;
    }
    go_on();
  }
  return true;
}

bool RingAllreduce::all_gather() {
  Workspace& work = workspace();
  while (gathered_ < steps_) {
    if (!work.gather_receives.next_completed(link())) {
      return false;
    }
    ++gathered_;
    if (gathered_ < steps_) {
      send(work.gather_sends, right_, kGather, segment_back(gathered_));
    }
  }
  return true;
}

bool RingAllreduce::poll() {
  post_gather_receives();
  return reduce_scatter() && all_gather() && workspace().gather_sends.drained(link()) && finish();
}

}  // namespace hora
