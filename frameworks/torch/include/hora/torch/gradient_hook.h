/// Other algorithms to average buckets of gradients: PowerSgd, TopK, or one of your own.
///
///     hora::DistributedOptimizer optimizer(world, sgd, model->named_parameters(),
///                                          {.hook = std::make_shared<hora::PowerSgd>()});
#pragma once

#include <hora/torch/collectives.h>

#include <string>

namespace hora::internal {
class OptimizerImplementation;
}  // namespace hora::internal

namespace HORA_EXPORT hora {

/// A bucket to be averaged: without a hook by
/// allreduce_async_(context, values, {.name = name, .process_set = process_set}).
struct GradientBucketView {
  const Context& context;
  ProcessSet process_set = kWorld;
  /// Distinguishes buckets of the optimizer; prefix of names of the hook's collectives.
  std::string name;
  /// One a parameter, with its shape and strides, views of `values`, on one device. One that this
  /// rank does not have is all zeros.
  std::vector<torch::Tensor> gradients;
  /// One dimension, with padding between, which is zero and must stay so.
  torch::Tensor values;
};

/// Replaces the allreduce of each bucket, by the same collectives and with the same bits on every
/// rank. Serves one optimizer at a time (else Error(invalid_argument)) and remembers by buckets'
/// names, which static_graph changes once. Thread rule: one thread at a time; begin() is called by
/// threads of backward().
class GradientHook {
 public:
  virtual ~GradientHook() = default;

  /// Starts to average; does not wait. Buckets may begin in different orders on ranks.
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

struct PowerSgdOptions {
  int rank = 2;                ///< of the matrices that travel, >= 1
  int start_step = 0;          ///< steps before it average gradients as they are
  bool error_feedback = true;  ///< what a step leaves out is added to the next one's gradient
  bool warm_start = true;      ///< each step begins with the last one's Q, else with a random one
  std::uint64_t seed = 0;      ///< of the random Q
};

/// Gradients of two and more dimensions travel as matrices of low rank where that is less: Vogels,
/// Karimireddy, Jaggi, "PowerSGD", NeurIPS 2019, arXiv 1905.13727, algorithms 1 and 2; others as
/// they are. Arithmetic in float32. Ranks have the same bits where their LibTorch computes alike.
/// Constructor: Error(invalid_argument) for options out of range.
class PowerSgd final : public GradientHook {
 public:
  explicit PowerSgd(const PowerSgdOptions& options = {});
  ~PowerSgd() override;

  void begin(const GradientBucketView& bucket) override;
  bool proceed(const GradientBucketView& bucket) override;
  std::string describe() const override;
  torch::OrderedDict<std::string, torch::Tensor> state() const override;
  void set_state(const torch::OrderedDict<std::string, torch::Tensor>& state) override;

 private:
  struct HORA_HIDDEN State;
  std::unique_ptr<State> state_;
};

struct TopKOptions {
  double share = 0.01;         ///< of each bucket's elements, within (0, 1]; at least one travels
  bool error_feedback = true;  ///< what is not sent is added to the next step's gradient
};

/// Sparsification with memory: Stich, Cordonnier, Jaggi, NeurIPS 2018, arXiv 1809.07599, section
/// 2.2, a bucket being the vector. Each rank sends its elements of largest magnitude, 8 bytes each,
/// to all: worth it up to a share of 1 / (2 ranks). Constructor: Error(invalid_argument) for a
/// share out of range.
class TopK final : public GradientHook {
 public:
  explicit TopK(const TopKOptions& options = {});
  ~TopK() override;

  void begin(const GradientBucketView& bucket) override;
  bool proceed(const GradientBucketView& bucket) override;
  std::string describe() const override;
  torch::OrderedDict<std::string, torch::Tensor> state() const override;
  void set_state(const torch::OrderedDict<std::string, torch::Tensor>& state) override;

 private:
  struct HORA_HIDDEN State;
  std::unique_ptr<State> state_;
};

}  // namespace hora
