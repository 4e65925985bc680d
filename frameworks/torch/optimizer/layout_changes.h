/// When an optimizer's buckets are laid out anew, and how: BucketArrangement says in which order,
/// BucketTuning of which form.
#pragma once

#include <hora/hora.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "frameworks/torch/optimizer/bucket_tuning.h"
#include "frameworks/torch/optimizer/gradient_buckets.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// The order in which gradients are put into buckets: as they came in the first round. Ranks agree
/// on it once, in the first round that all of them end: the exchange begins with the round's last
/// bucket and ends with its averages, so it makes no rank wait for another. Thread rule: one thread
/// at a time.
class BucketArrangement {
 public:
  /// `name`: prefix of the collectives' names. `fixed`: gradients that no rank has in that round
  /// have no bucket from then on (static_graph).
  BucketArrangement(const Peers& peers, std::string name, std::size_t gradients, bool fixed);

  bool fixed() const { return fixed_; }
  bool learned() const { return learned_; }

  /// Until the order is learned: a gradient has come. Its first arrival counts.
  void note(std::size_t gradient);
  /// Until the order is learned, once a round: all of this rank's gradients have come. Collective,
  /// does not wait.
  void begin();
  /// True when begin()'s collective is complete, or none is under way.
  bool ready() const { return handle_.ready(); }
  const std::string& name() const { return name_; }  ///< of that collective
  /// Waits for it. Throws its error.
  void wait();
  /// After wait(), where begin() was called: the order is learned. `present`: which gradients any
  /// rank has had, the same on all ranks.
  void learn(const std::vector<bool>& present);

  /// Once learned: the gradients that have buckets, the one that comes last first; those that no
  /// rank had count as the latest.
  const std::vector<std::size_t>& order() const { return order_; }
  /// Learned, and without a bucket.
  bool leaves_out(std::size_t gradient) const { return left_out_[gradient]; }

  /// After ranks have joined: the order of `root`, where this rank has not learned it. Collective.
  void take(int root);

 private:
  void adopt(std::vector<std::size_t> order);

  const Peers peers_;
  const std::string name_;
  const bool fixed_;
  bool learned_ = false;
  std::vector<std::size_t> arrivals_;
  std::vector<bool> arrived_;
  std::vector<std::int64_t>
      message_;  ///< gradients by arrival, those that have not come at the end
  Handle handle_;
  std::vector<std::size_t> order_;
  std::vector<bool> left_out_;
};

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
