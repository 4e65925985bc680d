#include "ops/cross/dissemination_allreduce.h"

#include <algorithm>
#include <array>

namespace hora {
namespace {

// One phase is enough: the distances of the rounds differ and are less than n, so a pair of members
// exchanges one message in each direction at most.
constexpr int kExchange = 0;

}  // namespace

DisseminationAllreduce::DisseminationAllreduce(CrossResources& resources,
                                               const Reduction& reduction,
                                               std::span<std::byte> staging, std::uint64_t sequence)
    : CrossWork(resources, sequence),
      reduction_(reduction),
      staging_(staging),
      me_(link().index()),
      members_(link().size()),
      gathered_(workspace().buffer.reserve(work_bytes(staging.size(), members_))) {
  for (int distance = 1; distance < members_; distance *= 2) {
    receive(workspace().receives, (me_ + distance) % members_, kExchange,
            blocks(distance, count_at(distance)));
  }
  const std::array<const std::byte*, 1> mine{staging_.data()};
  copy_ = space().reduce({.type = reduction_.type}, mine, gathered_,
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
  send(workspace().sends, (me_ + members_ - distance_) % members_, kExchange,
       blocks(0, count_at(distance_)));
}

bool DisseminationAllreduce::copy_mine() {
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
  return copy_mine() && gather() && workspace().sends.drained(link()) && sum_.poll() && finish();
}

void DisseminationAllreduce::start_sum() {
  auto& inputs = workspace().inputs;
  inputs.resize(static_cast<std::size_t>(members_));
  for (int member = 0; member < members_; ++member) {
    inputs[static_cast<std::size_t>(member)] =
        blocks((member - me_ + members_) % members_, 1).data();
  }
  sum_ = space().reduce(reduction_, inputs, staging_.data(),
                        staging_.size() / size_of(reduction_.type));
}

}  // namespace hora
