/// Forms of buckets tried during an optimizer's first steps (HORA_TUNING), alike on all ranks:
/// those that promise most by what an allreduce takes and by when gradients come
/// (bucket_forecast.h).
#pragma once

#include <hora/hora.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "frameworks/torch/optimizer/bucket_forecast.h"
#include "frameworks/torch/optimizer/bucket_tuner.h"
#include "frameworks/torch/optimizer/collective_cost.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// A step's time is the mean over ranks, exchanged beside the step's averages. Where a rank has
/// joined the usual form stays. Thread rule: one thread at a time.
class BucketTuning {
 public:
  struct Options {
    std::string name;       ///< prefix of the collectives' names
    BucketForm usual;       ///< without tuning
    std::string file = {};  ///< on the first rank's host; empty: none
    std::string holds_for;  ///< the key in the file: what a choice depends on
    /// Buckets are allreduces of host memory. Else bucket_forms_to_try() are tried: on a GPU
    /// neither can be timed without blocking the host, nor do hooks know when a gradient has come.
    bool forecast = true;
  };

  /// Collective. Throws Error(invalid_argument), the same on every rank, for a file that is there
  /// and is none of hora's.
  BucketTuning(const Peers& peers, Options options, std::size_t gradients);

  /// The next round's form.
  const BucketForm& form() const { return tuner_.form(); }
  /// One of this rank's gradients has come, at the time `now`. Its last arrival of a round counts.
  void note(std::size_t gradient, std::chrono::steady_clock::time_point now);
  /// Once a round, when this rank's gradients have come, at the time `now`. Does not wait.
  void begin(std::chrono::steady_clock::time_point now);
  bool ready() const { return handle_.ready(); }
  const std::string& name() const { return name_; }  ///< of begin()'s collective
  /// Waits for it. Throws its error.
  void wait();
  /// After wait(): the round's step counts. With the last one the first rank logs what was found,
  /// and puts it into the file; where it cannot, it warns. `layouts_of`: the same on all ranks.
  void count_step(const LayoutsOf& layouts_of);
  /// After ranks have joined: nothing is tried any more. Collective.
  void end(int root);

 private:
  using Clock = std::chrono::steady_clock;

  /// How long before `now` each gradient has come.
  std::vector<double> leads(Clock::time_point now) const;
  void report() const;

  const Peers peers_;
  const Options options_;
  const std::string name_;
  const std::size_t gradients_;
  BucketTuner tuner_;
  std::optional<CollectiveCost> cost_;                      ///< until it was used
  std::vector<std::optional<Clock::time_point>> arrivals_;  ///< of this round, by gradient
  std::vector<std::vector<double>> leads_;  ///< of this rank, by step of the warm-up
  Clock::time_point before_;                ///< of the last begin()
  bool begun_ = false;
  /// Sums over ranks: seconds of a step, 1, and after the warm-up's last step leads by gradient.
  std::vector<double> message_;
  Handle handle_;
};

}  // namespace hora::internal
