#include <hora/error.h>
#include <hora/torch/distributed_sampler.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>

namespace hora {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::invalid_argument, "DistributedSampler: " + what);
}

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

void check(std::size_t samples, const DistributedSamplerOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    refuse("rank " + std::to_string(options.rank) + " of " + std::to_string(options.size) +
           "; expected a rank from 0 to size - 1");
  }
  if (samples > std::numeric_limits<std::uint32_t>::max()) {
    refuse(std::to_string(samples) + " samples; expected fewer than 2^32");
  }
  if (options.remainder > Remainder::keep) {
    refuse("remainder is " + std::to_string(static_cast<int>(options.remainder)) +
           "; expected drop, pad or keep");
  }
  const auto size = static_cast<std::size_t>(options.size);
  if (options.batch == 0 || options.batch > std::numeric_limits<std::uint32_t>::max()) {
    refuse("a batch of " + std::to_string(options.batch) +
           " samples; expected at least 1 and fewer than 2^32");
  }
  if (options.remainder == Remainder::drop && samples < options.batch * size) {
    refuse(std::to_string(samples) + " samples are too few for a batch of " +
           std::to_string(options.batch) + " on each of " + std::to_string(options.size) +
           " ranks, so that an epoch would have no step; take a smaller batch, or "
           "Remainder::pad or keep");
  }
}

}  // namespace

DistributedSampler::DistributedSampler(std::size_t samples,
                                       const DistributedSamplerOptions& options)
    : samples_(samples), options_(options) {
  check(samples, options);
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
  switch (options_.remainder) {
    case Remainder::drop:
      return begin_ + left / width() * width();
    case Remainder::pad:
      return begin_ + (left + size - 1) / size * size;
    case Remainder::keep:
      break;
  }
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
  refuse("step " + std::to_string(step) + " of an epoch that has " + std::to_string(steps()) +
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
    refuse("a position in a data set of " + std::to_string(position.samples) +
           " samples does not fit this one of " + std::to_string(samples_) +
           "; resume with the data set that the position was saved with");
  }
  if (position.shuffle != options_.shuffle ||
      (position.shuffle && position.seed != options_.seed)) {
    const auto order = [](bool shuffle, std::uint64_t seed) {
      return shuffle ? "shuffled by seed " + std::to_string(seed) : std::string("not shuffled");
    };
    refuse("the position is in an order " + order(position.shuffle, position.seed) +
           ", but this sampler's is " + order(options_.shuffle, options_.seed) +
           "; resume with the options that the position was saved with");
  }
  if (position.consumed > samples_) {
    refuse("a position behind " + std::to_string(position.consumed) + " of " +
           std::to_string(samples_) + " samples; it was not made by position()");
  }
  set_epoch(position.epoch);
  begin_ = static_cast<std::size_t>(position.consumed);
}

double DistributedSampler::fractional_epoch(std::size_t step) const {
  const SamplerPosition reached = position(step);
  return static_cast<double>(epoch_) +
         (samples_ == 0 ? 0.0
                        : static_cast<double>(reached.consumed) / static_cast<double>(samples_));
}

}  // namespace hora
