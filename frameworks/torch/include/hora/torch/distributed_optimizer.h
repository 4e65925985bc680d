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

#include <hora/collectives.h>
#include <hora/context.h>
#include <hora/export.h>
#include <hora/torch/compression.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace hora::internal {
class OptimizerImplementation;
}  // namespace hora::internal

namespace HORA_EXPORT hora {

class GradientHook;

struct DistributedOptimizerOptions {
  /// average, sum or adasum (each gradient by itself, as allreduce does; without a predivide
  /// factor).
  ReduceOp op = ReduceOp::average;
  /// Bytes of gradients averaged in one piece, up to 64 GiB; 0: HORA_BUCKET_SIZE, else 4 MiB in one
  /// node and 25 MiB with a network.
  std::size_t bucket_bytes = 0;
  /// The type that gradients travel in.
  Compression compression = Compression::none;
  /// Whose gradients are averaged. Only its members construct the optimizer.
  ProcessSet process_set = kWorld;
  /// Gradients of so many backward passes are added up on each rank before they are averaged. The
  /// sum is not divided by it: divide the loss.
  int backward_passes_per_step = 1;
  /// An average divides by this before the sum, and by ranks / this after it: between 2^-14 and
  /// 2^14. For float16's range.
  double gradient_predivide_factor = 1.0;
  /// Not 0: the parameters, in order of registration, are cut into so many groups of about equal
  /// bytes; what is in one group is averaged in one piece (of each type), in place of bucket_bytes.
  int number_of_groups = 0;
  /// Likewise, each list is a group; parameters in none go into buckets as ever.
  std::vector<std::vector<torch::Tensor>> groups = {};
  /// Sparse gradients are made dense; false: they are an error.
  bool sparse_as_dense = false;
  /// Promises that each step's backward uses the parameters that the first one uses. From the 2nd
  /// step on those that no rank had have no bucket: none waits for them; a gradient for one of
  /// these is an Error(invalid_use) then.
  bool static_graph = false;
  /// ZeRO stage 1: Rajbhandari et al., arXiv 1910.02054, section 5.1. Each rank keeps the wrapped
  /// optimizer's state for its share of every bucket's elements, steps these, and gathers the
  /// others. See DistributedOptimizer.
  bool shard_state = false;
  /// With shard_state: step() returns while the parameters are being gathered, and what the program
  /// does until zero_grad() or complete_parameters() runs beside that. Until then the parameters
  /// must not be read.
  bool overlap_parameter_gather = false;
  /// With shard_state, and an optimizer of hora::optim (for another one a warning says that this
  /// does nothing) on the CPU among ranks of one node: step() averages, updates and hands out the
  /// parameters in one pass, where nothing but step() wants the averages (no synchronize(),
  /// clip_grad_norm_() or GradScaler before it in that step), with the same bits. Gradients are
  /// read where autograd has put them (HORA_TENSOR_ARENA). For it the constructor moves the
  /// parameters into memory that the ranks share (set_data()), which a forked child sees as it is
  /// then, not as it was at the fork. Elsewhere, where other tensors lie in a parameter's memory,
  /// and while a parameter has got other memory later, the three are passes of their own. Nothing
  /// is averaged before step(): for programs that clip, scale the loss or step by a closure it does
  /// nothing but harm.
  bool fused_update = false;
  /// With fused_update: where that takes one pass, a bucket is averaged and updated as soon as all
  /// ranks have its gradients, in the hooks of backward(), while backward() of earlier layers goes
  /// on; step() does the rest. The same bits, and its gradients' memory is free again then, for the
  /// gradients of earlier layers (`.grad` has no values any more). Everywhere it makes backward()
  /// a part of step():
  /// - From the completion of a parameter's gradient until step() returns nothing may read or write
  ///   the parameter. What one backward() asks of LibTorch is safe: a layer's backward runs before
  ///   its parameters' gradients are complete, also of one that is used several times. A value
  ///   that was saved for a backward that comes later (of detach(), or by retain_graph) makes
  ///   LibTorch throw, for it has been modified in place; a segment that is computed again in
  ///   backward() (checkpointing) must have its parameters for itself: a gradient that is completed
  ///   twice is an Error(invalid_use) as ever. Other reads, as by data(), are not noticed.
  /// - Learning rates and other options of the groups are read when a bucket is updated: they are
  ///   changed between step() and backward().
  /// - With several backward passes a step, the one that completes a gradient updates.
  /// - What decides after backward() whether, or with which gradients, to step is an
  ///   Error(invalid_use): synchronize(), clip_grad_norm_(), step(closure), GradScaler, and
  ///   zero_grad() between backward() and step(). FiniteCheck::check() reports, but comes too late
  ///   to keep values that are not finite out of the parameters.
  /// - A step that ends early, by an exception out of backward() or by destruction before step(),
  ///   leaves parameters some of whose elements have been updated. After an exception that all
  ///   ranks catch, step() ends the step (parameters without a gradient stay as they are), or a new
  ///   DistributedOptimizer goes on, after broadcast_parameters() as ever.
  bool update_in_backward = false;
  /// Such as module->named_buffers(): they become the first rank's while gradients are averaged,
  /// also where the step that follows is left out (GradScaler).
  std::vector<torch::Tensor> buffers = {};
  /// Averages the buckets in place of allreduce. Not with sum, adasum, a predivide factor or
  /// shard_state.
  std::shared_ptr<GradientHook> hook = nullptr;
  /// Ranks compare a checksum of the parameters and the options of the wrapped optimizer's groups
  /// with the first averages, and learning rates with every 16th. Where they differ, as without
  /// broadcast_parameters() or by a scheduler that follows one rank's loss, every rank throws the
  /// same Error(mismatch) before the step. False: they are meant to differ.
  bool compare_ranks = true;
};

/// What the wrapper has measured since construction or reset_statistics(), on this rank.
struct OptimizerStatistics {
  std::uint64_t steps = 0;
  std::chrono::nanoseconds waited{0};     ///< time in synchronize() until all buckets were averaged
  std::chrono::nanoseconds in_flight{0};  ///< sum over buckets of (fulfilled - decided)
  /// Of gradients that were held at once, the most of any step: from their completion on until
  /// step(), or until update_in_backward has given them back.
  std::size_t gradient_bytes = 0;
  /// 1 - waited / in_flight, within [0, 1]: the share of averaging that backward hid.
  double hidden_share() const;
};

/// Averages gradients over all ranks while backward still runs, then lets the wrapped optimizer
/// step.
///
/// The wrapped optimizer stays the user's: schedulers and parameter groups go on working. Buckets
/// are filled in reverse order of registration, from the 2nd step on in the order in which the
/// first rank's gradients came (not with shard_state, a hook or groups); the averages have the same
/// bits in either. A gradient stays where it is (HORA_TENSOR_ARENA) or is copied into its bucket,
/// which `.grad` views then. With compression the copy converts; what is averaged is converted
/// back, into memory that `.grad` views from step to step. A parameter that got no gradient on this
/// rank counts as zero; where no rank has one, `.grad` stays undefined. Frozen parameters are such;
/// they may be frozen and unfrozen between steps. A `.grad` kept by the user may hold the next
/// step's values later.
///
/// Every parameter in the wrapped optimizer's groups must be among named_parameters. Named
/// parameters that no group holds are neither averaged nor touched. A parameter has one
/// DistributedOptimizer at a time.
///
/// Parameters may be on several devices of the process, such as a model's halves on two GPUs, where
/// some are on local_device(): there all gradients are averaged, to which LibTorch copies those of
/// the others, and back. With parameters on the CPU and on a GPU the host waits for these copies.
/// All ranks have parameters on several devices, or none; not with shard_state.
///
/// With options.shard_state the constructor replaces the parameters in the wrapped optimizer's
/// groups by this rank's shares of them (views; the module's parameters stay what they are), so its
/// state takes 1/ranks of the memory. That is for optimizers that treat each element by itself,
/// such as SGD and Adam: they give the same bits as without. The wrapped optimizer must not have
/// stepped before. Averaged gradients are the shares': the parameters' `.grad` has no values then,
/// and LibTorch's clip_grad_norm_() throws: use that below. Saved state: this rank's. Uncompressed.
/// Destroyed, it gives the groups their parameters back, without state (Adagrad, whose state its
/// constructor makes, is to be made anew).
///
/// The context and the wrapped optimizer must outlive it, and stay where they are.
///
/// Collective: construct, backward and step on every rank of the process set; names, shapes, types,
/// memory order and options must agree, else the constructor throws the same Error(mismatch) on
/// every rank.
///
/// Every rank calls zero_grad() and step() equally often, also where it has nothing to contribute:
/// without backward() it still calls step(), and counts as zero. Where ranks differ in the calls
/// since their last averages, they are in different steps, and all of them throw the same
/// Error(mismatch) out of step(), synchronize() or zero_grad(), which names ranks and steps, before
/// any gradient of the step is used. With shard_state a step needs all ranks: where some step() and
/// some discard, that very call of each throws it. The optimizer cannot be used any more then, and
/// throws that error out of each of these calls and backward(): destroy it and make a new one, with
/// broadcast_parameters(), on every rank. A step in which a rank leaves out every call cannot be
/// told from a late rank: it shows in the end, when the others wait for a rank that calls
/// shutdown(), and get Error(shut_down). What one rank alone has to zero, such as what it did under
/// no_sync(), it zeroes by the module's zero_grad(), which does not count.
///
/// Destroyed after backward() without step(), it discards that step: it waits for the other ranks
/// to step(), to zero_grad(), or to destroy theirs, says so where that takes longer than
/// HORA_STALL_WARNING, and after as long again abandons the averages, with a warning that
/// names them: what peers may still write to stays allocated, and a rank that steps later is
/// averaged with this one's gradients. (A hook synchronises the ranks again after that: there it
/// may wait longer, and a later rank waits until this rank's shutdown().) While an exception
/// unwinds the stack, and after an error of the context, it waits for nothing.
///
/// Thread rule: one thread at a time (backward() included).
///
/// LBFGS takes step(closure), and goes with neither shard_state, nor hook, nor adasum, nor
/// GradScaler.
///
/// Parameters may get other memory later (torch::load(), Module::to(), set_data()), between steps,
/// on every rank alike: training goes on with it. Of another type, device or shape it is an error,
/// with shard_state also in another memory order.
///
/// Errors: Error(invalid_argument) for duplicate or missing names, parameters unknown to
/// named_parameters, sparse gradients, a type, device or shape changed later, devices this build
/// has no data path for, options out of range or not for this optimizer; Error(invalid_use) out of
/// backward() when it comes once too often before step() or synchronize(), and of one that was
/// moved from.
class DistributedOptimizer {
 public:
  DistributedOptimizer(const Context& context, torch::optim::Optimizer& optimizer,
                       const torch::OrderedDict<std::string, torch::Tensor>& named_parameters,
                       const DistributedOptimizerOptions& options = {});
  ~DistributedOptimizer();
  DistributedOptimizer(DistributedOptimizer&&) noexcept;
  DistributedOptimizer& operator=(DistributedOptimizer&&) noexcept;

  /// Makes every `.grad` undefined, so that autograd gives fresh memory instead of adding.
  /// Called after backward() without step() it discards that step: it waits like synchronize()
  /// first, on every rank. A step is discarded on all ranks or on none; a rank that had no
  /// backward() in it calls synchronize() before. Throws Error(invalid_use) where the parameters
  /// have changed since that backward(), as by the wrapped optimizer's own step().
  void zero_grad();
  /// Waits until all gradients are averaged. step() calls it; call it before clipping.
  void synchronize();
  /// synchronize(), unless that was done since the last backward, then the wrapped step().
  void step();
  /// The wrapped step() with a closure that makes gradients undefined (zero_grad()), computes the
  /// loss, calls backward(), may clip, and returns the loss, one floating-point element. Gradients
  /// are averaged each time the optimizer calls it, and so is the loss, which the optimizer gets
  /// (with op sum both are sums): LBFGS decides the same on every rank where all compute alike
  /// (the same kind of processor, the same number of threads). Gives what the wrapped step() gives:
  /// the average of the first losses. An empty closure: step().
  torch::Tensor step(const torch::optim::Optimizer::LossClosure& closure);

  /// The effect of its method lasts while any of its guards lives: guards may nest, move, be
  /// destroyed in any order, and outlive the optimizer.
  class [[nodiscard]] Guard {
   public:
    explicit Guard(std::shared_ptr<const void> token) noexcept : token_(std::move(token)) {}

   private:
    std::shared_ptr<const void> token_;
  };
  /// While it lives, backward() adds up gradients on this rank and averages nothing, nor does it
  /// count as one of backward_passes_per_step; the first backward() after it averages the sum.
  Guard no_sync();
  /// While it lives, step() averages nothing: it throws Error(invalid_use) where gradients have
  /// come since the last synchronize(). For programs written for Horovod; step() after
  /// synchronize() does not average again anyway.
  Guard skip_synchronize();
  /// From the next step on. Throws Error(invalid_use) between backward() and step(),
  /// Error(invalid_argument) below 1.
  void set_backward_passes_per_step(int passes);

  /// synchronize(), unless that was done; then multiplies all averaged gradients by
  /// max_norm / (norm + 1e-6) where their global 2-norm is more than max_norm > 0. Gives the norm,
  /// the same on every rank. Each rank reads its share of the elements, so that the pass that
  /// multiplies is the only whole one. On a GPU all is on its way before the host waits for the
  /// norm, once, and the factor is rounded to the gradients' type. Collective.
  double clip_grad_norm_(double max_norm);

  /// Waits until every rank's share of the parameters is here (options.overlap_parameter_gather).
  void complete_parameters();

  /// This rank has no more data, others have: blocks until every rank of the process set has called
  /// it, and takes part in their averages with zeros meanwhile (an average divides by the size of
  /// the set all the same). Then all get the parameters and the wrapped optimizer's state of the
  /// rank that called it last, whose world rank it gives; broadcast_buffers() from it does that for
  /// buffers. The parameters travel in one copy, in memory of the device that averages. Throws
  /// Error(invalid_use) with options shard_state, buffers or hook. Optimizers that step in one
  /// loop: hora::join() takes them all at once.
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

/// join() of several optimizers whose steps are taken in one loop: this rank has no more data for
/// any of them. All are of one process set and in the same order on every rank; else
/// Error(invalid_argument), and Error(mismatch) on every rank.
int join(const Context& context, const std::vector<DistributedOptimizer*>& optimizers);

}  // namespace hora
