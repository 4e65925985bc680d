/// Samples of a data set for each rank and step.
///
///     hora::DistributedSampler sampler(images.size(), {.rank = world.rank(), .size = world.size(),
///                                                      .seed = 1, .batch = 32});
///     for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
///       sampler.set_epoch(epoch);
///       for (std::size_t step = 0; step < sampler.steps(); ++step) {
///         train_on(images, sampler.batch(step));
///       }
///     }
#pragma once

#include <hora/export.h>
#include <torch/data/samplers/base.h>
#include <torch/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace HORA_EXPORT hora {

/// Use of the last samples of an epoch, too few for a step of W = batch * size.
enum class Remainder : std::uint8_t {
  drop,  ///< left out: every batch is whole
  pad,   ///< one more step, equal on all ranks: up to size - 1 of the epoch's first come again
  keep,  ///< one more step, in which some ranks may have none: each sample counts once
};

struct DistributedSamplerOptions {
  int rank = 0;            ///< of this process, from 0 to size - 1
  int size = 1;            ///< ranks among which samples are dealt
  std::uint64_t seed = 0;  ///< the same on every rank; draws the order, together with the epoch
  bool shuffle = true;     ///< false: 0, 1, 2, ... in every epoch
  std::size_t batch = 1;   ///< samples of one rank in one step, >= 1
  Remainder remainder = Remainder::drop;
};

/// Place of all ranks in an epoch, the same on each, for a checkpoint.
struct SamplerPosition {
  std::uint64_t epoch = 0;
  std::uint64_t consumed = 0;  ///< samples at the beginning of the epoch's order that are used up
  std::uint64_t samples = 0;   ///< of the data set
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool operator==(const SamplerPosition&) const = default;
};

/// Deals the samples 0 .. samples-1 of a data set out to ranks, anew in each epoch, without
/// communication.
///
/// Order: std::mt19937_64 seeded by a std::seed_seq of seed mod 2^32, seed div 2^32, epoch mod
/// 2^32, epoch div 2^32. From order[i] = i, for n = samples ... 2 (Durstenfeld, Communications of
/// the ACM 7, 1964, algorithm 235): draws x, again while x < 2^64 mod n, and swaps order[n - 1]
/// with order[x mod n].
///
/// Step s has the places from s * W below (s + 1) * W of the order, W = batch * size; rank r of
/// these r, r + size, ...: which samples make a step depends on W alone. restore() begins them at
/// `consumed`, for any number of ranks and batch. Errors: Error(invalid_argument) for a bad rank,
/// batch, Remainder, step or position, 2^32 samples or more, drop with fewer samples than W. Thread
/// rule: set_epoch() and restore() while no other call is made; others, any thread.
class DistributedSampler {
 public:
  explicit DistributedSampler(std::size_t samples, const DistributedSamplerOptions& options = {});

  /// Begins the epoch at its first sample. Constructed it is in epoch 0.
  void set_epoch(std::uint64_t epoch);
  std::uint64_t epoch() const noexcept { return epoch_; }

  std::size_t samples() const noexcept { return samples_; }
  const DistributedSamplerOptions& options() const noexcept { return options_; }

  /// Steps of this epoch from where it was begun; the same on every rank.
  std::size_t steps() const noexcept;
  /// This rank's samples in a step < steps(); the last may be empty with Remainder::keep.
  std::vector<std::size_t> batch(std::size_t step) const;
  /// Number of this rank's samples in all steps().
  std::size_t local_samples() const noexcept;
  /// The batches of all steps(), one after the other. O(local_samples()).
  std::vector<std::size_t> local_order() const;
  /// Number of all ranks' samples in a step < steps().
  std::size_t global_batch(std::size_t step) const;

  /// Position after steps 0 .. steps_done-1; steps_done <= steps().
  SamplerPosition position(std::size_t steps_done) const;
  /// Goes on from there: the next step is step 0.
  void restore(const SamplerPosition& position);
  /// epoch() and its share used before `step` <= steps(): 2.5 in the middle of the third.
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

/// Gives LibTorch's data loader this rank's batches of the sampler's epoch. A loader asks ahead:
/// save DistributedSampler::position() of the steps that the program has counted itself. The
/// sampler must outlive it; set_epoch() and restore() only between passes. Throws
/// Error(invalid_argument) for another batch size or data set size. Thread rule: one thread.
///
///     auto loader = torch::data::make_data_loader(dataset, hora::DataLoaderSampler(sampler),
///                                                 torch::data::DataLoaderOptions(32).workers(2));
class DataLoaderSampler final : public torch::data::samplers::Sampler<> {
 public:
  explicit DataLoaderSampler(DistributedSampler& sampler) : sampler_(&sampler) {}

  /// Begins with step 0 again, before each pass.
  void reset(torch::optional<std::size_t> new_size = torch::nullopt) override;
  /// Returns the next batch; none after the last, nor where this rank has no samples in it.
  torch::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// Save the position behind the batches given; load() calls restore() of the sampler.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  DistributedSampler* sampler_;
  std::size_t step_ = 0;
};

}  // namespace hora
