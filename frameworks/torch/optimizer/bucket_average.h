/// How one bucket's gradients become the average, or sum, over ranks: chosen by the options.
#pragma once

#include <hora/torch/gradient_hook.h>
#include <hora/types.h>

#include <memory>
#include <string>

#include "frameworks/torch/optimizer/fused_rounds.h"
#include "frameworks/torch/optimizer/gradient_bucket.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// Thread rule: one thread at a time.
class BucketAverage {
 public:
  virtual ~BucketAverage() = default;
  /// The bucket is packed: starts its collectives. Its memory is not the caller's until proceed()
  /// is true, or either has thrown.
  virtual void begin() = 0;
  /// After begin(): what waits for FusedRounds' answer begins, as the answer is no.
  virtual void begin_apart() {}
  /// Waits for what was started last; true when that was all, false where more has been started.
  virtual bool proceed() = 0;
  /// Whether collectives on the bucket's memory may be under way.
  virtual bool under_way() const = 0;
  /// After begin(): every rank has begun it, or it has failed.
  virtual bool begun_by_all() const = 0;
};

struct AveragingOptions {
  ReduceOp op = ReduceOp::average;
  double predivide = 1.0;
  bool sharded = false;
  /// Where gradients are sharded and may be averaged by the pass that updates.
  std::shared_ptr<FusedRounds> fused = nullptr;
  std::shared_ptr<GradientHook> hook = nullptr;
};

/// `bucket` outlives it; where gradients are sharded, it gets its slice. `name`: of the bucket's
/// collectives, or their prefix.
std::unique_ptr<BucketAverage> make_average(const Peers& peers, const AveragingOptions& options,
                                            GradientBucket& bucket, const std::string& name);

}  // namespace hora::internal
