/// Which steps of an epoch are to be made: all of them, or those that an interruption has left.
///
///     const vision::EpochSteps steps(sampler, position);
///     loader.start(steps.epoch(), steps.samples(), steps.first_of_samples());
///     for (std::size_t step = steps.first(); step < steps.end(); ++step) {
///       train_on(loader.next());
///       position = steps.after(step);
///     }
#pragma once

#include <hora/torch/distributed_sampler.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace vision {

/// Steps are counted from the epoch's begin, in steps of this run's ranks and batch, whichever
/// ranks made those before `first()`: where another number of ranks made them, as many whole steps
/// as their samples are enough for.
///
/// Thread rule: one thread; the sampler stays as the constructor leaves it while this is used.
class EpochSteps {
 public:
  /// From `position`, to which it sets the sampler, which must outlive it. At the begin of an epoch
  /// only position.epoch counts. Throws hora::Error(invalid_argument), as
  /// DistributedSampler::restore(), for a position in another order or data set.
  EpochSteps(hora::DistributedSampler& sampler, const hora::SamplerPosition& position);

  std::uint64_t epoch() const { return sampler_.epoch(); }
  std::size_t first() const { return first_; }
  /// Behind the last one. One less than a whole epoch's where the samples before first() were not
  /// whole steps of this run.
  std::size_t end() const { return first_ - first_of_samples_ + sampler_.steps(); }

  /// This rank's samples, for Loader::start(), whose steps begin at first_of_samples(): of the
  /// whole epoch where it can be cut into this run's steps, so that what depends on the list (which
  /// image takes a bad one's place) is as in an epoch that was not interrupted; else of what is
  /// left.
  std::vector<std::size_t> samples() const { return sampler_.local_order(); }
  std::size_t first_of_samples() const { return first_of_samples_; }

  /// Where ranks are when they have made step `step`.
  hora::SamplerPosition after(std::size_t step) const;

 private:
  hora::DistributedSampler& sampler_;
  std::size_t first_ = 0;
  std::size_t first_of_samples_ = 0;
};

}  // namespace vision
