/// DistributedSampler for LibTorch's data loaders.
///
///     hora::DistributedSampler sampler(dataset.size().value(), {.rank = world.rank(),
///                                      .size = world.size(), .seed = 1, .batch = 32});
///     auto loader = torch::data::make_data_loader(dataset, hora::DataLoaderSampler(sampler),
///                                                 torch::data::DataLoaderOptions(32).workers(2));
///     for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
///       sampler.set_epoch(epoch);
///       for (auto& batch : *loader) train_on(batch);
///     }
#pragma once

#include <hora/export.h>
#include <hora/torch/distributed_sampler.h>
#include <torch/data/samplers/base.h>
#include <torch/types.h>

#include <cstddef>
#include <vector>

namespace HORA_EXPORT hora {

/// Gives a loader this rank's batches of the sampler's epoch. A loader asks ahead: save
/// DistributedSampler::position() of the steps that the program has counted itself. The sampler
/// must outlive it and stay where it is; set_epoch() and restore() only between passes. Throws
/// Error(invalid_argument) for another batch size or data set size than the sampler's. Thread rule:
/// one thread.
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
