/// Which samples of a data set this rank takes in which step; no LibTorch needed.
///
///     hora::DistributedSampler sampler(images.size(), {.rank = world.rank(), .size = world.size(),
///                                                      .seed = 1, .batch = 32});
///     for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
///       sampler.set_epoch(epoch);
///       for (std::size_t step = 0; step < sampler.steps(); ++step) {
///         train_on(images, sampler.batch(step));
///       }
///     }
///
/// A loader that prepares batches ahead takes them all at once: local_order().
#pragma once

#include <hora/export.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace HORA_EXPORT hora {

/// What becomes of the samples at the end of an epoch that are too few for a whole step, where a
/// whole step takes batch * size samples.
enum class Remainder : std::uint8_t {
  /// They are left out of this epoch. Every batch is whole, on every rank: no sample counts twice,
  /// and the average over ranks of the batches' means is the mean of the step's samples.
  drop,
  /// They make one more step, in which every rank has equally many: where ranks do not divide them,
  /// up to size - 1 samples from the beginning of the epoch's order are taken once more.
  pad,
  /// They make one more step, in which ranks may differ by one sample and some may have none: every
  /// sample counts exactly once. For validation; in training, weigh by the numbers of samples.
  keep,
};

struct DistributedSamplerOptions {
  int rank = 0;            ///< of this process, from 0 to size - 1
  int size = 1;            ///< ranks among which samples are dealt
  std::uint64_t seed = 0;  ///< the same on every rank; draws the order, together with the epoch
  bool shuffle = true;     ///< false: 0, 1, 2, ... in every epoch
  std::size_t batch = 1;   ///< samples of one rank in one step, >= 1
  Remainder remainder = Remainder::drop;
};

/// Where in an epoch all ranks together are: plain numbers, to save in a checkpoint. The same on
/// every rank.
struct SamplerPosition {
  std::uint64_t epoch = 0;
  std::uint64_t consumed = 0;  ///< samples at the beginning of the epoch's order that are used up
  std::uint64_t samples = 0;   ///< of the data set
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool operator==(const SamplerPosition&) const = default;
};

/// Deals the samples 0 .. samples-1 of a data set out to ranks, anew in each epoch. Without
/// communication: all ranks compute the same order.
///
/// The order of an epoch. Let `random` be std::mt19937_64 seeded by a std::seed_seq of seed mod
/// 2^32, seed div 2^32, epoch mod 2^32, epoch div 2^32, all of which the C++ standard fixes to the
/// bit. Beginning with order[i] = i, and for n = samples, samples - 1, ... 2 (Durstenfeld's form of
/// the Fisher-Yates shuffle, Communications of the ACM 7, 1964, algorithm 235): draw x, again while
/// x < 2^64 mod n, and swap order[n - 1] with order[x mod n]. It depends on (samples, seed, epoch)
/// alone, and is the same with every standard library.
///
/// The steps of an epoch. With a step's width W = batch * size, step s takes the places s * W up to
/// below (s + 1) * W of the order, and of these rank r has the places r, r + size, r + 2 * size,
/// ... So which samples make a step depends on W alone, not on how many ranks share them.
///
/// Interrupted and resumed. Steps 0 .. s-1 have used up a prefix of the order, `consumed` samples
/// long: position(s). restore() begins steps at that place, whatever the number of ranks and the
/// batch now are: step s takes the places consumed + s * W up to below consumed + (s + 1) * W, rank
/// r of these every size-th beginning with the r-th, and the Remainder is that of the samples from
/// `consumed` on. So with Remainder::keep every sample counts exactly once, with drop at most once
/// and fewer than the new W are left out; and where W is the same as before, the steps are those of
/// an epoch that was not interrupted. The next set_epoch() begins at 0 again.
///
/// Memory: 4 bytes a sample where shuffled (5 MB for 1.28 million), shared by copies.
///
/// Errors: Error(invalid_argument) for a rank not from 0 to size - 1, a batch of 0, an unknown
/// Remainder, 2^32 samples or more, drop with fewer samples than one whole step takes, a step that
/// is none of the epoch's, and a position that is of another order or beyond the samples.
///
/// Thread rule: set_epoch() and restore() by one thread while no other call is made; all others,
/// any thread.
class DistributedSampler {
 public:
  explicit DistributedSampler(std::size_t samples, const DistributedSamplerOptions& options = {});

  /// Begins the epoch, at its first sample. Constructed it is in epoch 0.
  void set_epoch(std::uint64_t epoch);
  std::uint64_t epoch() const noexcept { return epoch_; }

  std::size_t samples() const noexcept { return samples_; }
  const DistributedSamplerOptions& options() const noexcept { return options_; }

  /// Steps of this epoch, from where set_epoch() or restore() has begun it: the same on every rank.
  std::size_t steps() const noexcept;
  /// This rank's samples in a step < steps(). With Remainder::keep the last one may be empty.
  std::vector<std::size_t> batch(std::size_t step) const;
  /// This rank's samples in all steps() together: how many they are.
  std::size_t local_samples() const noexcept;
  /// These samples: the batches of all steps(), one after the other. O(local_samples()).
  std::vector<std::size_t> local_order() const;
  /// Samples of all ranks in a step < steps(): the sum of the lengths of their batches.
  std::size_t global_batch(std::size_t step) const;

  /// Where ranks are that have done steps 0 .. steps_done-1 of this epoch; steps_done <= steps().
  SamplerPosition position(std::size_t steps_done) const;
  /// Goes on from there: the next step is step 0.
  void restore(const SamplerPosition& position);
  /// epoch() and which share of its samples is used up before step `step` <= steps(): 2.5 in the
  /// middle of the third epoch. What a schedule of the learning rate may follow where the number of
  /// ranks changes.
  double fractional_epoch(std::size_t step) const;

 private:
  std::size_t width() const noexcept;
  std::size_t end() const noexcept;
  std::size_t own_of(std::size_t count) const noexcept;
  std::vector<std::size_t> own_between(std::size_t begin, std::size_t end) const;
  void check_step(std::size_t step, std::size_t limit) const;
  void draw_order();

  std::size_t samples_;
  DistributedSamplerOptions options_;
  std::uint64_t epoch_ = 0;
  std::size_t begin_ = 0;  ///< place of the order at which step 0 begins
  std::shared_ptr<const std::vector<std::uint32_t>> order_;  ///< null: not shuffled
};

}  // namespace hora
