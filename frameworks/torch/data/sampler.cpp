#include <hora/error.h>
#include <hora/torch/distributed_sampler.h>
#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "frameworks/torch/tensor_view.h"

namespace hora {
using namespace internal;
namespace {

constexpr std::size_t kMost = std::numeric_limits<std::uint32_t>::max();

/// Uniform in 0 .. bound-1, bound > 0.
std::uint64_t below(std::mt19937_64& random, std::uint64_t bound) {
  // The first 2^64 mod bound values would make the small remainders more likely.
  const std::uint64_t unfair = (0 - bound) % bound;
  std::uint64_t value = random();
  while (value < unfair) value = random();
  return value % bound;
}

std::mt19937_64 generator_of(std::uint64_t seed, std::uint64_t epoch) {
  std::seed_seq words{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32U),
                      static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32U)};
  return std::mt19937_64(words);
}

}  // namespace

DistributedSampler::DistributedSampler(std::size_t samples,
                                       const DistributedSamplerOptions& options)
    : samples_(samples), options_(options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    refuse_argument("DistributedSampler: rank ", options.rank, " of ", options.size,
                    "; expected a rank from 0 to size - 1");
  }
  if (samples > kMost) {
    refuse_argument("DistributedSampler: ", samples, " samples; expected fewer than 2^32");
  }
  if (options.remainder > Remainder::keep) {
    refuse_argument("DistributedSampler: remainder is ", static_cast<int>(options.remainder),
                    "; expected drop, pad or keep");
  }
  if (options.batch == 0 || options.batch > kMost) {
    refuse_argument("DistributedSampler: a batch of ", options.batch,
                    " samples; expected at least 1 and fewer than 2^32");
  }
  if (options.remainder == Remainder::drop && samples < width()) {
    refuse_argument("DistributedSampler: ", samples, " samples are too few for a batch of ",
                    options.batch, " on each of ", options.size,
                    " ranks; take a smaller batch, or Remainder::pad or keep");
  }
  draw_order();
}

void DistributedSampler::set_epoch(std::uint64_t epoch) {
  begin_ = 0;
  if (epoch == epoch_) return;
  epoch_ = epoch;
  draw_order();
}

void DistributedSampler::draw_order() {
  if (!options_.shuffle) return;
  std::vector<std::uint32_t> order(samples_);
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  std::mt19937_64 random = generator_of(options_.seed, epoch_);
  for (std::size_t left = samples_; left > 1; --left) {
    std::swap(order[left - 1], order[below(random, left)]);
  }
  order_ = std::make_shared<const std::vector<std::uint32_t>>(std::move(order));
}

std::size_t DistributedSampler::width() const noexcept {
  return options_.batch * static_cast<std::size_t>(options_.size);
}

/// The place at which the last step ends; behind the samples where it is padded.
std::size_t DistributedSampler::end() const noexcept {
  const std::size_t left = samples_ - begin_;
  const auto size = static_cast<std::size_t>(options_.size);
  if (options_.remainder == Remainder::drop) return begin_ + left / width() * width();
  if (options_.remainder == Remainder::pad) return begin_ + (left + size - 1) / size * size;
  return samples_;
}

std::size_t DistributedSampler::steps() const noexcept {
  return (end() - begin_ + width() - 1) / width();
}

/// How many of `count` places, the first of which is rank 0's, are this rank's.
std::size_t DistributedSampler::own_of(std::size_t count) const noexcept {
  const auto size = static_cast<std::size_t>(options_.size);
  return (count + size - 1 - static_cast<std::size_t>(options_.rank)) / size;
}

std::size_t DistributedSampler::local_samples() const noexcept {
  return own_of(end() - begin_);
}

void DistributedSampler::check_step(std::size_t step, std::size_t limit) const {
  if (step < limit) return;
  refuse_argument("DistributedSampler: step ", step, " of an epoch that has ", steps(),
                  " steps for this rank and batch");
}

/// This rank's samples of the places begin .. end-1, the first of which is rank 0's.
std::vector<std::size_t> DistributedSampler::own_between(std::size_t begin, std::size_t end) const {
  const auto size = static_cast<std::size_t>(options_.size);
  std::vector<std::size_t> own;
  own.reserve(own_of(end - begin));
  for (std::size_t place = begin + static_cast<std::size_t>(options_.rank); place < end;
       place += size) {
    const std::size_t within = place % samples_;
    own.push_back(order_ == nullptr ? within : (*order_)[within]);
  }
  return own;
}

std::vector<std::size_t> DistributedSampler::batch(std::size_t step) const {
  check_step(step, steps());
  const std::size_t begin = begin_ + step * width();
  return own_between(begin, std::min(begin + width(), end()));
}

std::vector<std::size_t> DistributedSampler::local_order() const {
  return own_between(begin_, end());
}

std::size_t DistributedSampler::global_batch(std::size_t step) const {
  check_step(step, steps());
  return std::min(width(), end() - begin_ - step * width());
}

SamplerPosition DistributedSampler::position(std::size_t steps_done) const {
  check_step(steps_done, steps() + 1);
  return {.epoch = epoch_,
          .consumed = std::min(begin_ + steps_done * width(), samples_),
          .samples = samples_,
          .seed = options_.seed,
          .shuffle = options_.shuffle};
}

void DistributedSampler::restore(const SamplerPosition& position) {
  if (position.samples != samples_) {
    refuse_argument("DistributedSampler: a position in a data set of ", position.samples,
                    " samples does not fit this one of ", samples_,
                    "; resume with the data set that the position was saved with");
  }
  if (position.shuffle != options_.shuffle ||
      (position.shuffle && position.seed != options_.seed)) {
    const auto order = [](bool shuffle, std::uint64_t seed) {
      return shuffle ? c10::str("shuffled by seed ", seed) : std::string("not shuffled");
    };
    refuse_argument("DistributedSampler: the position is in an order ",
                    order(position.shuffle, position.seed), ", but this sampler's is ",
                    order(options_.shuffle, options_.seed),
                    "; resume with the options that the position was saved with");
  }
  if (position.consumed > samples_) {
    refuse_argument("DistributedSampler: a position behind ", position.consumed, " of ", samples_,
                    " samples; it was not made by position()");
  }
  set_epoch(position.epoch);
  begin_ = static_cast<std::size_t>(position.consumed);
}

double DistributedSampler::fractional_epoch(std::size_t step) const {
  const auto consumed = static_cast<double>(position(step).consumed);
  return static_cast<double>(epoch_) +
         (samples_ == 0 ? 0.0 : consumed / static_cast<double>(samples_));
}

void DataLoaderSampler::reset(torch::optional<std::size_t> new_size) {
  if (new_size.has_value() && *new_size != sampler_->samples()) {
    refuse_argument("DataLoaderSampler: the data set has ", *new_size,
                    " samples, its DistributedSampler ", sampler_->samples(),
                    "; make a sampler of the data set's size");
  }
  step_ = 0;
}

torch::optional<std::vector<std::size_t>> DataLoaderSampler::next(std::size_t batch_size) {
  if (batch_size != sampler_->options().batch) {
    refuse_argument("DataLoaderSampler: the loader's batches are of ", batch_size,
                    " samples, its DistributedSampler's of ", sampler_->options().batch,
                    "; give both the same size");
  }
  if (step_ == sampler_->steps()) return torch::nullopt;
  std::vector<std::size_t> batch = sampler_->batch(step_);
  ++step_;
  if (batch.empty()) return torch::nullopt;
  return batch;
}

void DataLoaderSampler::save(torch::serialize::OutputArchive& archive) const {
  const auto write = [&](const char* name, std::uint64_t value) {
    archive.write(name, torch::tensor(static_cast<std::int64_t>(value)));
  };
  const SamplerPosition position = sampler_->position(step_);
  write("epoch", position.epoch);
  write("consumed", position.consumed);
  write("samples", position.samples);
  write("seed", position.seed);
  write("shuffle", position.shuffle ? 1 : 0);
}

void DataLoaderSampler::load(torch::serialize::InputArchive& archive) {
  const auto read = [&](const char* name) {
    torch::Tensor value;
    archive.read(name, value);
    return static_cast<std::uint64_t>(value.item<std::int64_t>());
  };
  sampler_->restore({.epoch = read("epoch"),
                     .consumed = read("consumed"),
                     .samples = read("samples"),
                     .seed = read("seed"),
                     .shuffle = read("shuffle") != 0});
  step_ = 0;
}

}  // namespace hora
