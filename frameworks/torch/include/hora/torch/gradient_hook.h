/// How a bucket of gradients becomes the average over ranks: a user's own algorithm, such as this
/// one, which averages them as they are.
///
///     struct Plain : hora::GradientHook {
///       std::map<std::string, hora::TensorHandle> handles;
///       void begin(const hora::GradientBucketView& bucket) override {
///         handles[bucket.name] =
///             hora::allreduce_async_(bucket.context, bucket.values,
///                                    {.name = bucket.name, .process_set = bucket.process_set});
///       }
///       bool proceed(const hora::GradientBucketView& bucket) override {
///         handles[bucket.name].wait();
///         return true;
///       }
///       std::string describe() const override { return "Plain"; }
///     };
///     hora::DistributedOptimizer optimizer(world, sgd, model->named_parameters(),
///                                          {.hook = std::make_shared<Plain>()});
#pragma once

#include <c10/util/Exception.h>  // for ordered_dict.h, which lacks it
#include <hora/collectives.h>
#include <hora/context.h>
#include <hora/export.h>
#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace hora::internal {
class OptimizerImplementation;
}  // namespace hora::internal

namespace HORA_EXPORT hora {

/// One bucket of one optimizer, the same on every rank.
struct GradientBucketView {
  const Context& context;
  ProcessSet process_set = kWorld;
  /// Distinguishes buckets of the optimizer; prefix for the names of the hook's collectives.
  std::string name;
  /// One for each parameter, with its shape and strides, in the type of Compression, all on one
  /// device. They lie in `values`. A gradient that this rank does not have is all zeros.
  std::vector<torch::Tensor> gradients;
  /// All of them and the padding between, which is zero and must stay so: one dimension.
  torch::Tensor values;
};

/// Replaces the allreduce of each bucket. One object serves one optimizer at a time (for a second
/// one it is an Error(invalid_argument)), and keeps what it has to remember from step to step, by
/// the bucket's name (static_graph changes buckets and names once). It must start the same
/// collectives for a bucket on every rank, under names that begin with the bucket's, and leave the
/// same bits everywhere.
///
/// Which gradients there are, and whether they are finite (GradScaler), travels beside it.
///
/// Thread rule: one thread at a time; begin() is called by the threads of backward(). What they
/// throw comes out of backward(), synchronize() or step().
class GradientHook {
 public:
  virtual ~GradientHook() = default;

  /// This rank's gradients are complete, while backward goes on to others: starts to average them,
  /// and does not wait. Buckets begin in the order in which they are filled, which may differ
  /// between ranks and steps.
  virtual void begin(const GradientBucketView& bucket) = 0;

  /// Waits for what was started last. True when `gradients` hold the average; false when more has
  /// been started, to be called again after the other buckets.
  virtual bool proceed(const GradientBucketView& bucket) = 0;

  /// One line about its options, for the comparison of ranks at construction.
  virtual std::string describe() const = 0;

  /// What it remembers from step to step, such as errors to feed back, for a checkpoint; named by
  /// the text after the last '.' of buckets' names, which is the same in another run. Between
  /// steps; not copied. By default: nothing.
  virtual torch::OrderedDict<std::string, torch::Tensor> state() const {
    return torch::OrderedDict<std::string, torch::Tensor>();
  }
  /// Continues with what state() has given. What does not fit the buckets that it gets begins anew.
  virtual void set_state(const torch::OrderedDict<std::string, torch::Tensor>& state) {
    static_cast<void>(state);
  }

 private:
  friend class internal::OptimizerImplementation;
  std::weak_ptr<const void> user_;  ///< lives while the optimizer does
};

}  // namespace hora
