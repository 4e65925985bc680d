#include <hora/error.h>
#include <hora/torch/data_loader_sampler.h>
#include <torch/serialize/archive.h>
#include <torch/utils.h>

#include <cstdint>
#include <string>

namespace hora {
namespace {

void write(torch::serialize::OutputArchive& archive, const std::string& name, std::uint64_t value) {
  archive.write(name, torch::tensor(static_cast<std::int64_t>(value)));
}

std::uint64_t read(torch::serialize::InputArchive& archive, const std::string& name) {
  torch::Tensor value;
  archive.read(name, value);
  return static_cast<std::uint64_t>(value.item<std::int64_t>());
}

}  // namespace

void DataLoaderSampler::reset(torch::optional<std::size_t> new_size) {
  if (new_size.has_value() && *new_size != sampler_->samples()) {
    throw Error(ErrorCode::invalid_argument,
                "DataLoaderSampler: the data set has " + std::to_string(*new_size) +
                    " samples, its DistributedSampler " + std::to_string(sampler_->samples()) +
                    "; make a sampler of the data set's size");
  }
  step_ = 0;
}

torch::optional<std::vector<std::size_t>> DataLoaderSampler::next(std::size_t batch_size) {
  if (batch_size != sampler_->options().batch) {
    throw Error(ErrorCode::invalid_argument,
                "DataLoaderSampler: the loader's batches are of " + std::to_string(batch_size) +
                    " samples, its DistributedSampler's of " +
                    std::to_string(sampler_->options().batch) + "; give both the same size");
  }
  if (step_ == sampler_->steps()) return torch::nullopt;
  std::vector<std::size_t> batch = sampler_->batch(step_);
  ++step_;
  if (batch.empty()) return torch::nullopt;
  return batch;
}

void DataLoaderSampler::save(torch::serialize::OutputArchive& archive) const {
  const SamplerPosition position = sampler_->position(step_);
  write(archive, "epoch", position.epoch);
  write(archive, "consumed", position.consumed);
  write(archive, "samples", position.samples);
  write(archive, "seed", position.seed);
  write(archive, "shuffle", position.shuffle ? 1 : 0);
}

void DataLoaderSampler::load(torch::serialize::InputArchive& archive) {
  sampler_->restore({.epoch = read(archive, "epoch"),
                     .consumed = read(archive, "consumed"),
                     .samples = read(archive, "samples"),
                     .seed = read(archive, "seed"),
                     .shuffle = read(archive, "shuffle") != 0});
  step_ = 0;
}

}  // namespace hora
