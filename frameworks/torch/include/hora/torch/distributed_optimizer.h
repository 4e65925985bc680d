/// DistributedOptimizer: gradients averaged over ranks while backward runs.
///
///     hora::DistributedOptimizer optimizer(world, sgd, model->named_parameters());
///     hora::broadcast_parameters(world, *model);
///     for (auto& batch : *loader) {
///       optimizer.zero_grad();
///       loss_of(model, batch).backward();                       // averaging overlaps with this
///       optimizer.step();
///     }
#pragma once

#include <hora/torch/collectives.h>

#include <string>
#include <utility>

namespace hora::internal {
class OptimizerImplementation;
}  // namespace hora::internal

namespace HORA_EXPORT hora {

class GradientHook;

/// How ranks divide the wrapped optimizer's state and its step, with the same bits for optimizers
/// that treat each element by itself. docs/training.md, "Sharding", has the rules of each.
enum class Sharding {
  off,
  /// ZeRO stage 1: Rajbhandari et al., arXiv 1910.02054, section 5.1. Each rank keeps the state for
  /// its share of every bucket's elements, steps these, and gathers the others.
  state,
  /// state; with an optimizer of hora::optim (for another one a warning), on the CPU among ranks of
  /// one node, step() averages, updates and hands out the parameters in one pass.
  fused,
  /// fused; hooks of backward() update a bucket as soon as all ranks have its gradients. Until
  /// step() nothing may use these parameters; calls that want averages are Error(invalid_use).
  in_backward,
};

struct DistributedOptimizerOptions {
  /// average, sum or adasum (each gradient by itself, as allreduce does).
  ReduceOp op = ReduceOp::average;
  /// Bytes of gradients averaged in one piece, up to 64 GiB; 0: HORA_BUCKET_SIZE, else 4 MiB in one
  /// node and 25 MiB with a network.
  std::size_t bucket_bytes = 0;
  /// The type that gradients travel in.
  Compression compression = Compression::none;
  /// Whose gradients are averaged. Only its members construct the optimizer.
  ProcessSet process_set = kWorld;
  /// Adds up gradients of so many backward passes before they are averaged: divide the loss.
  int backward_passes_per_step = 1;
  /// An average divides by this before the sum, and by ranks / this after it: between 2^-14 and
  /// 2^14. For float16's range.
  double gradient_predivide_factor = 1.0;
  /// Not 0: cuts the parameters, in order of registration, into so many groups of about equal
  /// bytes, each averaged in one piece (of each type), in place of bucket_bytes.
  int number_of_groups = 0;
  /// Lists of parameters, each averaged in one piece; those in none go into buckets as ever.
  std::vector<std::vector<torch::Tensor>> groups = {};
  /// Makes sparse gradients dense; false: they are an error.
  bool sparse_as_dense = false;
  /// Promises that each step's backward uses the parameters that the first one uses. From the 2nd
  /// step on nothing waits for the others; a gradient for one of these is an Error(invalid_use).
  bool static_graph = false;
  Sharding sharding = Sharding::off;
  /// With sharding: step() returns while the parameters are being gathered. They must not be read
  /// until zero_grad() or complete_parameters().
  bool overlap_parameter_gather = false;
  /// Such as module->named_buffers(): they become the first rank's while gradients are averaged,
  /// also where the step that follows is left out (GradScaler).
  std::vector<torch::Tensor> buffers = {};
  /// Averages the buckets in place of allreduce. Not with sum, adasum, a predivide factor or
  /// sharding.
  std::shared_ptr<GradientHook> hook = nullptr;
  /// Compares parameters and the groups' options with the first averages, and learning rates with
  /// every 16th: where they differ, every rank throws the same Error(mismatch) before the step.
  bool compare_ranks = true;
};

/// Measured since construction or reset_statistics(), on this rank.
struct OptimizerStatistics {
  std::uint64_t steps = 0;
  std::chrono::nanoseconds waited{0};     ///< time in synchronize() until all buckets were averaged
  std::chrono::nanoseconds in_flight{0};  ///< sum over buckets of (fulfilled - decided)
  /// The most bytes of gradients held at once in any step, from their completion until step(), or
  /// until the update in backward.
  std::size_t gradient_bytes = 0;
  /// 1 - waited / in_flight, within [0, 1]: the share of averaging that backward hid.
  double hidden_share() const;
};

/// Averages gradients over all ranks while backward still runs, then lets the wrapped optimizer
/// step, which stays the user's, with schedulers and groups. Its parameters must be among
/// named_parameters. docs/training.md has the rules.
///
/// Collective: construct, backward and step on every rank of the process set, zero_grad() and
/// step() equally often; names, shapes, types, memory order and options must agree, else every rank
/// throws the same Error(mismatch). The context and the wrapped optimizer must outlive it, and stay
/// where they are. Error(invalid_use) comes out of a backward() too many before step() or
/// synchronize(). Thread rule: one thread at a time (backward() included).
class DistributedOptimizer {
 public:
  DistributedOptimizer(const Context& context, torch::optim::Optimizer& optimizer,
                       const torch::OrderedDict<std::string, torch::Tensor>& named_parameters,
                       const DistributedOptimizerOptions& options = {});
  ~DistributedOptimizer();
  DistributedOptimizer(DistributedOptimizer&&) noexcept;
  DistributedOptimizer& operator=(DistributedOptimizer&&) noexcept;

  /// Makes every `.grad` undefined. After backward() without step() it discards that step, which
  /// all ranks must do: waits like synchronize() first. Throws Error(invalid_use) where parameters
  /// have changed since, as by the wrapped step().
  void zero_grad();
  /// Waits until all gradients are averaged. step() calls it.
  void synchronize();
  /// synchronize(), unless that was done since the last backward, then the wrapped step().
  void step();
  /// The wrapped step() with a closure that calls zero_grad(), computes the loss, calls backward(),
  /// may clip, and returns the loss, one floating-point element. Gradients and losses are averaged
  /// (op sum: summed) at each call. Returns the average of the first losses. Empty: step().
  torch::Tensor step(const torch::optim::Optimizer::LossClosure& closure);

  /// Keeps its method's effect. Guards may nest, move, end in any order, and outlive the optimizer.
  class [[nodiscard]] Guard {
   public:
    explicit Guard(std::shared_ptr<const void> token) noexcept : token_(std::move(token)) {}

   private:
    std::shared_ptr<const void> token_;
  };
  /// While it lives, backward() adds up gradients and averages nothing, nor does it count as one of
  /// backward_passes_per_step; the first backward() after it averages the sum.
  Guard no_sync();
  /// While it lives, step() averages nothing, and throws Error(invalid_use) where gradients have
  /// come since the last synchronize(). For programs written for Horovod.
  Guard skip_synchronize();
  /// From the next step on. Throws Error(invalid_use) between backward() and step(),
  /// Error(invalid_argument) below 1.
  void set_backward_passes_per_step(int passes);

  /// synchronize(), unless that was done; then multiplies all averaged gradients by
  /// max_norm / (norm + 1e-6) where their global 2-norm is more than max_norm > 0. Returns the
  /// norm, the same on every rank. Collective.
  double clip_grad_norm_(double max_norm);

  /// Waits until every rank's share of the parameters is here (options.overlap_parameter_gather).
  void complete_parameters();

  /// Without more data on this rank: takes part in others' averages with zeros until all have
  /// called it; then all get the parameters, state and options (learning rates) of the rank that
  /// called last, whose world rank it returns. Error(invalid_use) with sharding, buffers or hook.
  int join();

  torch::optim::Optimizer& wrapped();
  OptimizerStatistics statistics() const;
  void reset_statistics();

 private:
  friend class GradScaler;
  friend int join(const Context& context, const std::vector<DistributedOptimizer*>& optimizers);
  friend class internal::OptimizerImplementation;
  internal::OptimizerImplementation& implementation() const;
  std::unique_ptr<internal::OptimizerImplementation> implementation_;
};

/// join() of several optimizers that step in one loop. All are of one process set, else
/// Error(invalid_argument), and in the same order on every rank, else Error(mismatch) on each.
int join(const Context& context, const std::vector<DistributedOptimizer*>& optimizers);

}  // namespace hora
