#include "ops/mpi/dissemination_allreduce.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ops/local/kernels.h"

namespace hora {
namespace {

// One phase is enough: the distances of the rounds differ and are less than n, so a pair of members
// exchanges one message in each direction at most.
constexpr int kExchange = 0;

}  // namespace

DisseminationAllreduce::DisseminationAllreduce(CrossResources& resources, DataType type,
                                               std::span<std::byte> staging, double scale,
                                               std::uint64_t sequence)
    : CrossWork(resources, sequence),
      type_(type),
      staging_(staging),
      scale_(scale),
      me_(link().index()),
      members_(link().size()),
      gathered_(workspace().buffer.reserve(staging.size() * static_cast<std::size_t>(members_))) {
  std::memcpy(gathered_, staging_.data(), staging_.size());
  for (int distance = 1; distance < members_; distance *= 2) {
    receive(workspace().receives, (me_ + distance) % members_, kExchange,
            blocks(distance, count_at(distance)));
  }
  send_round();
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

bool DisseminationAllreduce::poll() {
  while (distance_ < members_) {
    if (!workspace().receives.next_completed(link())) {
      return false;
    }
    distance_ *= 2;
    if (distance_ < members_) {
      send_round();
    } else {
      sum();
    }
  }
  return workspace().sends.drained(link()) && finish();
}

void DisseminationAllreduce::sum() {
  auto& inputs = workspace().inputs;
  inputs.resize(static_cast<std::size_t>(members_));
  for (int member = 0; member < members_; ++member) {
    inputs[static_cast<std::size_t>(member)] =
        blocks((member - me_ + members_) % members_, 1).data();
  }
  const std::array<std::byte*, 1> output{staging_.data()};
  reduce(type_, ReduceOp::sum, inputs, output, staging_.size() / size_of(type_), {.post = scale_});
}

}  // namespace hora
