#include "frameworks/torch/optimizer/bucket_arrangement.h"

#include <algorithm>
#include <utility>

namespace hora::internal {

BucketArrangement::BucketArrangement(const Peers& peers, std::string name, std::size_t gradients,
                                     bool fixed)
    : peers_(peers),
      name_(std::move(name) + ".order"),
      fixed_(fixed),
      arrived_(gradients, false),
      left_out_(gradients, false) {}

void BucketArrangement::note(std::size_t gradient) {
  if (learned_ || arrived_[gradient]) return;
  arrived_[gradient] = true;
  arrivals_.push_back(gradient);
}

void BucketArrangement::begin() {
  if (learned_) return;
  // The former round's, where that has failed: the name must be free.
  if (handle_.valid()) handle_.wait();
  message_.assign(arrivals_.begin(), arrivals_.end());
  for (std::size_t gradient = 0; gradient < arrived_.size(); ++gradient) {
    if (!arrived_[gradient]) message_.push_back(static_cast<std::int64_t>(gradient));
  }
  if (peers_.size == 1) return;
  // An allreduce, which ranks that have joined do not block. Of the others the first one's
  // numbers are the largest.
  const auto count = static_cast<std::int64_t>(message_.size());
  for (std::int64_t& gradient : message_) gradient += (peers_.size - peers_.rank_in_set) * count;
  handle_ = allreduce_async(peers_.context, view(message_.data(), count),
                            {.name = name_, .op = ReduceOp::max, .process_set = peers_.set});
}

void BucketArrangement::wait() {
  if (handle_.valid()) handle_.wait();
}

void BucketArrangement::learn(const std::vector<bool>& present) {
  if (learned_) return;
  std::vector<std::size_t> latest;
  std::vector<std::size_t> came;
  for (auto gradient = message_.rbegin(); gradient != message_.rend(); ++gradient) {
    const std::size_t index = static_cast<std::size_t>(*gradient) % message_.size();
    (present[index] ? came : latest).push_back(index);
  }
  std::vector<std::size_t> order;
  if (!fixed_) order = std::move(latest);
  order.insert(order.end(), came.begin(), came.end());
  adopt(std::move(order));
}

void BucketArrangement::adopt(std::vector<std::size_t> order) {
  order_ = std::move(order);
  left_out_.assign(left_out_.size(), true);
  for (const std::size_t gradient : order_) left_out_[gradient] = false;
  learned_ = true;
  arrivals_ = {};
  message_ = {};
}

void BucketArrangement::take(int root) {
  std::vector<std::int64_t> message(left_out_.size() + 1, -1);  // a length, or -1: not learned
  if (learned_) {
    message.front() = static_cast<std::int64_t>(order_.size());
    std::copy(order_.begin(), order_.end(), message.begin() + 1);
  }
  broadcast(peers_.context, view(message.data(), static_cast<std::int64_t>(message.size())),
            {.name = name_ + ".learned", .root = root, .process_set = peers_.set});
  if (learned_ || message.front() < 0) return;
  adopt({message.begin() + 1, message.begin() + 1 + message.front()});
}

}  // namespace hora::internal
