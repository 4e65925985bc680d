/// Forms of buckets tried during an optimizer's first steps (HORA_TUNING), alike on all ranks.
#pragma once

#include <hora/hora.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <string>

#include "frameworks/torch/optimizer/bucket_tuner.h"
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
  };

  /// Collective. Throws Error(invalid_argument), the same on every rank, for a file that is there
  /// and is none of hora's.
  BucketTuning(const Peers& peers, Options options);

  /// Of the next round.
  const BucketForm& form() const { return tuner_.form(); }
  /// Once a round, when this rank's gradients have come, at the time `now`. Does not wait.
  void begin(std::chrono::steady_clock::time_point now);
  bool ready() const { return handle_.ready(); }
  const std::string& name() const { return name_; }  ///< of begin()'s collective
  /// Waits for it. Throws its error.
  void wait();
  /// After wait(): the round's step counts. With the last one the first rank logs what was found,
  /// and puts it into the file; where it cannot, it warns.
  void count_step();
  /// After ranks have joined: nothing is tried any more. Collective.
  void end(int root);

 private:
  void report() const;

  const Peers peers_;
  const Options options_;
  const std::string name_;
  BucketTuner tuner_;
  std::chrono::steady_clock::time_point before_;  ///< of the last begin()
  bool begun_ = false;
  std::array<double, 2> seconds_{};  ///< of ranks' steps, summed; of how many ranks
  Handle handle_;
};

}  // namespace hora::internal
