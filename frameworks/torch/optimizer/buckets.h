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

struct AveragingOptions {
  ReduceOp op = ReduceOp::average;
  double predivide = 1.0;
  bool sharded = false;
  /// Where gradients are sharded: the pass that updates may average them (fused.h).
  bool fused = false;
  std::shared_ptr<GradientHook> hook = nullptr;
};

struct BucketOptions {
  std::string name;  ///< of the collectives: "<name>.<bucket>"
  std::size_t bucket_bytes = 0;
  Compression compression = Compression::none;
  AveragingOptions averaging = {};
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

/// Throws Error(out_of_memory) naming the bucket. Thread rule: one thread at a time.
class GradientBuckets {
 public:
  /// `order`: indices of the parameters that have a bucket, the one whose gradient comes last first
  /// (as registration has it). `parameters` outlive it, and are all on one device.
  GradientBuckets(const Peers& peers, const std::vector<Parameter>& parameters,
                  const BucketOptions& options, const std::vector<std::size_t>& order);

  /// Whether another order and other options would put the same gradients into the same buckets.
  bool laid_out_as(const std::vector<std::size_t>& order, const BucketOptions& options) const;

  /// `step_lane`: see step_lanes.
  void begin_round(std::optional<double> unscale, std::size_t step_lane);
  bool has_bucket(std::size_t index) const { return slots_[index].bucket.has_value(); }
  bool stored(std::size_t index) const { return slots_[index].stored; }
  /// The parameter's `.grad`, or zeros, into its bucket, which is submitted with its last one.
  /// `delivered`: see GradientBucket::store().
  void store(std::size_t index, const at::Tensor& delivered = {});
  /// Zeros, whatever `.grad` is.
  void store_absent(std::size_t index);
  /// Once every gradient is stored: submits what could not be before.
  void submit_all();
  /// After submit_all(): see BucketAverage.
  void begin_apart();
  bool submitted(std::size_t bucket) const { return buckets_[bucket].submitted; }
  /// Whether all ranks have submitted the bucket, in one step: it is as after wait() then. Does not
  /// wait where the pass that updates averages. Throws the bucket's error.
  bool has_come(std::size_t bucket);
  /// Peers are done with the bucket's gradients. Gives the bytes of those that lay where autograd
  /// has put them.
  std::size_t release(std::size_t bucket) { return buckets_[bucket].memory->give_back_gradients(); }
  /// Names of submitted buckets that not all ranks have.
  std::vector<std::string> awaited() const;
  /// Waits for all buckets. Throws the first error, when none is under way any more.
  void wait();
  /// After wait(): nothing where only the device knows.
  std::optional<bool> present_anywhere(std::size_t index) const;
  /// After wait(): whether all ranks have set one step lane; nothing where only the device knows.
  std::optional<bool> in_one_step() const;
  /// After wait(): `.grad` is the average, or undefined.
  void publish(std::size_t index, bool present) const;
  void end_round();
  /// Peers are done with the gradients that lie where autograd has put them, or have never begun.
  void give_back_gradients();
  /// After wait(): see GradientBucket; one each where there is any.
  std::vector<at::Tensor> flags() const;
  /// Frees none of it: peers may still write to it.
  void give_up_memory() noexcept;

  std::size_t size() const { return buckets_.size(); }
  const BucketLayout& layout(std::size_t bucket) const { return buckets_[bucket].memory->layout(); }
  const std::string& name(std::size_t bucket) const { return buckets_[bucket].name; }
  /// memory_bytes() of it.
  const std::byte* data(std::size_t bucket) const { return buckets_[bucket].memory->data(); }
  /// After wait(), of sharded gradients: see GradientBucket.
  const at::Tensor& slice(std::size_t bucket) const { return buckets_[bucket].memory->slice; }

 private:
  struct ParameterSlot {
    std::optional<std::size_t> bucket;
    std::size_t place = 0;
    bool stored = false;  ///< in this round
  };
  struct Bucket {
    std::string name;
    std::unique_ptr<GradientBucket> memory;
    std::unique_ptr<BucketAverage> average;  // after memory: destroyed first
    std::size_t missing = 0;                 ///< gradients not stored in this round
    bool submitted = false;

    void submit();
    /// True when the bucket is done.
    bool proceed();
  };

  Bucket& bucket_of(std::size_t index) { return buckets_[*slots_[index].bucket]; }
  const Bucket& bucket_of(std::size_t index) const { return buckets_[*slots_[index].bucket]; }
  void note_stored(std::size_t index);

  const Peers peers_;
  const std::vector<Parameter>& parameters_;
  std::vector<ParameterSlot> slots_;  // by parameter
  std::vector<Bucket> buckets_;
};

}  // namespace hora::internal
