#include "examples/cifar10/sampler.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "examples/vision/data/random.h"

namespace cifar10 {

std::vector<std::size_t> permutation(std::size_t count, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  // Fisher and Yates by hand: std::shuffle may differ from one standard library to the next.
  vision::Random random{seed, epoch};
  for (std::size_t left = count; left > 1; --left) {
    std::swap(order[left - 1], order[random.below(left)]);
  }
  return order;
}

TrainingSampler::TrainingSampler(std::size_t images, Shard shard, std::size_t batch,
                                 std::uint64_t seed)
    : images_(images), shard_(shard), seed_(seed) {
  const std::size_t share = images / static_cast<std::size_t>(shard.size);
  if (share < 2 || batch < 2) {
    throw std::invalid_argument(std::to_string(images) + " training images in batches of " +
                                std::to_string(batch) + " for " + std::to_string(shard.size) +
                                " ranks; expected at least 2 images for each rank and batches of "
                                "at least 2, which BatchNorm needs");
  }
  batch_ = std::min(batch, share);
  steps_ = share / batch_;
}

std::vector<std::size_t> TrainingSampler::epoch(std::uint64_t number) const {
  const std::vector<std::size_t> order = permutation(images_, seed_, number);
  std::vector<std::size_t> own(steps_ * batch_);
  for (std::size_t i = 0; i < own.size(); ++i) {
    own[i] =
        order[i * static_cast<std::size_t>(shard_.size) + static_cast<std::size_t>(shard_.rank)];
  }
  return own;
}

std::vector<std::size_t> validation_shard(std::size_t images, Shard shard) {
  std::vector<std::size_t> own;
  for (auto i = static_cast<std::size_t>(shard.rank); i < images;
       i += static_cast<std::size_t>(shard.size)) {
    own.push_back(i);
  }
  return own;
}

}  // namespace cifar10
