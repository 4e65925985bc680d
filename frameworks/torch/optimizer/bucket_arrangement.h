/// In which order gradients are laid out in buckets: at first the one in which parameters are
/// registered, later the one in which the first rank's gradients have come.
#pragma once

#include <hora/hora.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "frameworks/torch/peers.h"

namespace hora::internal {

/// Ranks agree on an order once, in the first round that all of them end: the exchange begins with
/// the round's last bucket and ends with its averages, so it makes no rank wait for another.
/// Thread rule: one thread at a time.
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

}  // namespace hora::internal
