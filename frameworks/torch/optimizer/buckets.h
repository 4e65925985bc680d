/// All buckets of an optimizer: where each gradient goes, how it is averaged, and what is under
/// way.
#pragma once

#include <hora/torch/compression.h>
#include <hora/torch/gradient_hook.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frameworks/torch/optimizer/bucket.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// How gradients are laid out in buckets, and averaged.
struct BucketOptions {
  std::string name;  ///< of the collectives: "<name>.<bucket>"
  std::size_t bucket_bytes = 0;
  Compression compression = Compression::none;
  ReduceOp op = ReduceOp::average;
  double predivide = 1.0;
  bool sharded = false;
  /// Where gradients are sharded: the pass that updates may average them (fused.h).
  bool fused = false;
  std::shared_ptr<GradientHook> hook = nullptr;
  /// By parameter, or empty: see GradientSize.
  std::vector<std::optional<std::size_t>> groups = {};
};

/// How one bucket's gradients become the average, or sum, over ranks. Thread rule: one thread at a
/// time.
class BucketAverage {
 public:
  virtual ~BucketAverage() = default;
  /// The bucket is packed: starts its collectives. Its memory is not the caller's until proceed()
  /// is true, or either has thrown.
  virtual void begin() = 0;
  /// After begin(): starts what waits for whether the pass that updates averages, as it does not.
  virtual void begin_apart() {}
  /// Waits for what was started last; true when that was all, false where more has been started.
  virtual bool proceed() = 0;
  /// Whether collectives on the bucket's memory may be under way.
  virtual bool under_way() const = 0;
  /// After begin(): every rank has begun it, or it has failed.
  virtual bool begun_by_all() const = 0;
};

/// Thread rule: one thread at a time.
struct Bucket {
  std::string name;  ///< of its collectives
  std::unique_ptr<GradientBucket> memory;
  std::unique_ptr<BucketAverage> average;  // after memory: destroyed first
  std::size_t missing = 0;                 ///< gradients not stored in this round
  bool submitted = false;                  ///< in this round

  const BucketLayout& layout() const { return memory->layout(); }
  /// All gradients are stored. Does nothing the second time in a round.
  void submit();
  /// As BucketAverage; true when the averages are where `.grad` views them.
  bool proceed();
};

/// `order`: indices of the parameters that have a bucket, the one whose gradient comes last first
/// (as registration has it). `parameters` are all on one device. Places count parameters as they
/// are registered.
std::vector<BucketLayout> bucket_layouts(const Peers& peers,
                                         const std::vector<Parameter>& parameters,
                                         const BucketOptions& options,
                                         const std::vector<std::size_t>& order);

/// Likewise. Throws Error(out_of_memory) naming the bucket.
std::vector<Bucket> make_buckets(const Peers& peers, const std::vector<Parameter>& parameters,
                                 const BucketOptions& options,
                                 const std::vector<std::size_t>& order);

}  // namespace hora::internal
