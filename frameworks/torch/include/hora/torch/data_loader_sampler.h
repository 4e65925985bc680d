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

/// Gives a loader this rank's batches of the sampler's epoch, one by one. A loader asks for batches
/// ahead of those it has given out: what the program has used up is what it has counted itself, and
/// DistributedSampler::position() is what to save.
///
/// The sampler must outlive it, and stay where it is. set_epoch() and restore() are for the time
/// between two passes over the loader.
///
/// Errors: Error(invalid_argument) for a batch size that is not the sampler's, and a data set of
/// another size. Thread rule: one thread, as the loader calls it.
class DataLoaderSampler final : public torch::data::samplers::Sampler<> {
 public:
  explicit DataLoaderSampler(DistributedSampler& sampler) : sampler_(&sampler) {}

  /// Begins with step 0 again; the loader calls it before each pass.
  void reset(torch::optional<std::size_t> new_size = torch::nullopt) override;
  /// The next batch; none behind the last one, and none for a rank that the last step has no
  /// samples for.
  torch::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  /// The position behind the batches that next() has given; to load it is to restore() the sampler.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  DistributedSampler* sampler_;
  std::size_t step_ = 0;
};

}  // namespace hora
