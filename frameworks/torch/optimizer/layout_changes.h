/// When an optimizer's buckets are laid out anew, and how: BucketArrangement says in which order,
/// BucketTuning of which form.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "frameworks/torch/optimizer/bucket_arrangement.h"
#include "frameworks/torch/optimizer/bucket_tuning.h"
#include "frameworks/torch/optimizer/gradient_buckets.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// The same on all ranks, which ask once a round. Thread rule: one thread at a time.
class LayoutChanges {
 public:
  /// Collective. `options`: of the buckets; outlive it. `fixed`: see BucketArrangement. Shards, a
  /// hook's memory and the user's groups belong to buckets as they are: there nothing changes.
  LayoutChanges(const Peers& peers, const BucketOptions& options, std::size_t gradients, bool fixed,
                const std::optional<BucketTuning::Options>& tuning);

  /// Options of the first round's buckets.
  BucketOptions first() const;
  /// Whether gradients that no rank has had in the first round have no bucket.
  bool fixed() const { return arrangement_ && arrangement_->fixed(); }
  bool leaves_out(std::size_t gradient) const {
    return arrangement_ && arrangement_->leaves_out(gradient);
  }

  /// A gradient has come, at the time `now`.
  void note(std::size_t gradient, std::chrono::steady_clock::time_point now);
  /// All of this rank's gradients of the round have come, at the time `now`. Collective, does not
  /// wait.
  void begin(std::chrono::steady_clock::time_point now);
  /// Names of its collectives that not all ranks have begun.
  std::vector<std::string> awaited() const;
  /// Waits for them. Throws their error.
  void wait();
  /// After wait(): `present`: which gradients any rank has had. `buckets`: as they are.
  void end_round(const std::vector<bool>& present, const GradientBuckets& buckets);
  /// After ranks have joined: what `root` has found, where this rank was not there. Collective.
  void take(int root);

  struct Layout {
    BucketOptions options;
    std::vector<std::size_t> order;
  };
  /// Before a round: what its buckets are to be, where that is not what they are.
  std::optional<Layout> next(const GradientBuckets& buckets);
  /// Whether next() may give one.
  bool pending() const { return pending_; }

 private:
  BucketOptions options() const;
  BucketOptions options_of(const BucketForm& form) const;

  const Peers peers_;
  const BucketOptions& options_;
  std::optional<BucketArrangement> arrangement_;  ///< where buckets may change
  std::optional<BucketTuning> tuning_;            ///< likewise, and their form, too
  std::size_t layouts_ = 1;                       ///< that buckets have had
  bool pending_ = false;
  bool joined_ = false;  ///< since the last layout
};

}  // namespace hora::internal
