/// Which images a rank takes in which order: functions over numbers, without communication.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace cifar10 {

/// One rank's part of a data set.
struct Shard {
  int rank;
  int size;
};

/// 0 .. count-1 in an order that depends on (seed, epoch) alone, so that all ranks have the same.
std::vector<std::size_t> permutation(std::size_t count, std::uint64_t seed, std::uint64_t epoch);

/// Training order of one rank. Each epoch's permutation is dealt out in turn: rank r takes places
/// r, r + size, ..., so the images of one step over all ranks do not depend on how many ranks share
/// them. Only whole batches are taken, alike on every rank; the remainder (less than one batch of
/// all ranks) is left out of this epoch, never repeated: then the average over ranks is the
/// gradient of all the step's images, each counted once. Data for less than one batch of all ranks
/// makes one smaller batch.
class TrainingSampler {
 public:
  /// Throws std::invalid_argument where there are fewer than two images a rank (BatchNorm needs two
  /// values) or batch < 2.
  TrainingSampler(std::size_t images, Shard shard, std::size_t batch, std::uint64_t seed);

  std::size_t batch() const { return batch_; }
  std::size_t steps() const { return steps_; }
  /// steps() * batch() images, in order.
  std::vector<std::size_t> epoch(std::uint64_t number) const;

 private:
  std::size_t images_;
  Shard shard_;
  std::size_t batch_;
  std::size_t steps_;
  std::uint64_t seed_;
};

/// The rank's images r, r + size, ... of a validation set: the shards are disjoint and cover it, so
/// they may differ in length by one, and with few images one may be empty.
std::vector<std::size_t> validation_shard(std::size_t images, Shard shard);

}  // namespace cifar10
