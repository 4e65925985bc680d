/// Another algorithm to average buckets of gradients, such as this one, which is as without.
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

struct GradientBucketView {
  const Context& context;
  ProcessSet process_set = kWorld;
  /// Distinguishes buckets of the optimizer; prefix of names of the hook's collectives.
  std::string name;
  /// One a parameter, with its shape and strides, views of `values`, in the type of Compression, on
  /// one device. One that this rank does not have is all zeros.
  std::vector<torch::Tensor> gradients;
  /// One dimension, with padding between, which is zero and must stay so.
  torch::Tensor values;
};

/// Replaces the allreduce of each bucket, the same on every rank. One object serves one optimizer
/// at a time (else Error(invalid_argument)) and remembers by buckets' names, which static_graph
/// changes once. It must start the same collectives for a bucket on every rank, under names that
/// begin with the bucket's, and leave the same bits. Errors come out of backward(), synchronize()
/// or step(). Thread rule: one thread at a time; begin() is called by threads of backward().
class GradientHook {
 public:
  virtual ~GradientHook() = default;

  /// Starts to average, while backward goes on; does not wait. Buckets may begin in different
  /// orders on ranks and in steps.
  virtual void begin(const GradientBucketView& bucket) = 0;

  /// Waits for what was started last. True when `gradients` hold the average; false when more has
  /// been started: called again after the other buckets.
  virtual bool proceed(const GradientBucketView& bucket) = 0;

  /// One line of its options, which ranks compare at construction.
  virtual std::string describe() const = 0;

  /// Memory for a checkpoint, between steps, not copied, named by the text after the last '.' of
  /// buckets' names, the same in another run.
  virtual torch::OrderedDict<std::string, torch::Tensor> state() const {
    return torch::OrderedDict<std::string, torch::Tensor>();
  }
  /// Continues with a state(); what fits no bucket begins anew.
  virtual void set_state(const torch::OrderedDict<std::string, torch::Tensor>& state) {
    static_cast<void>(state);
  }

 private:
  friend class internal::OptimizerImplementation;
  std::weak_ptr<const void> user_;  ///< lives while the optimizer does
};

}  // namespace hora
