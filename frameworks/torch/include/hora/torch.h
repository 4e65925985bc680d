/// hora for LibTorch: DistributedOptimizer, and the headers of collectives, objects and modules.
#pragma once

#include <hora/compression.h>
#include <hora/hora.h>
#include <hora/sync_batch_norm.h>
#include <hora/torch_collectives.h>
#include <hora/torch_groups.h>
#include <hora/torch_objects.h>
#include <hora/torch_sparse.h>
#include <torch/torch.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

namespace hora {

/// Makes every rank's parameters and buffers equal to the root's, to the bit. Collective.
void broadcast_parameters(const Context& context, torch::nn::Module& module, int root = 0);
/// The buffers alone, such as BatchNorm's running statistics. Collective.
void broadcast_buffers(const Context& context, torch::nn::Module& module, int root = 0);

struct DistributedOptimizerOptions {
  ReduceOp op = ReduceOp::average;
  /// Bytes of gradients averaged in one piece; 0: HORA_BUCKET_SIZE, else 4 MiB in one node and
  /// 25 MiB with a network.
  std::size_t bucket_bytes = 0;
  /// The type that gradients travel in.
  Compression compression = Compression::none;
};

/// What the wrapper has measured since construction or reset_statistics(), on this rank.
struct OptimizerStatistics {
  std::uint64_t steps = 0;
  std::chrono::nanoseconds waited{0};     ///< time in synchronize() until all buckets were averaged
  std::chrono::nanoseconds in_flight{0};  ///< sum over buckets of (fulfilled - decided)
  /// 1 - waited / in_flight, within [0, 1]: the share of averaging that backward hid.
  double hidden_share() const;
};

/// Averages gradients over all ranks while backward still runs, then lets the wrapped optimizer
/// step.
///
/// The wrapped optimizer stays the user's: schedulers and parameter groups go on working. Buckets
/// are filled in reverse order of registration; a gradient is copied once, into its bucket, and
/// `.grad` becomes a view of it. With compression the copy converts, and when the bucket is
/// averaged it is converted back, into memory that `.grad` views from step to step. A parameter
/// that got no gradient on this rank counts as zero; where no rank has one, `.grad` stays
/// undefined. Frozen parameters are such; they may be frozen and unfrozen between steps. A `.grad`
/// kept by the user holds the next step's values later.
///
/// Every parameter in the wrapped optimizer's groups must be among named_parameters. Named
/// parameters that no group holds are neither averaged nor touched.
///
/// The context and the wrapped optimizer must outlive it, and stay where they are.
///
/// Collective: construct, backward and step on every rank; names, shapes, types, memory order and
/// options must agree, else the constructor throws the same Error(mismatch) on every rank.
///
/// Thread rule: one thread at a time (backward() included).
///
/// Errors: Error(invalid_argument) for an optimizer that calls its closure again (LBFGS), for
/// duplicate or missing names, parameters unknown to named_parameters, sparse gradients, a type or
/// shape changed later, devices this build has no data path for; Error(invalid_use) out of
/// backward() when a second backward comes before step() or synchronize().
class DistributedOptimizer {
 public:
  DistributedOptimizer(const Context& context, torch::optim::Optimizer& optimizer,
                       const torch::OrderedDict<std::string, torch::Tensor>& named_parameters,
                       const DistributedOptimizerOptions& options = {});
  ~DistributedOptimizer();
  DistributedOptimizer(DistributedOptimizer&&) noexcept;
  DistributedOptimizer& operator=(DistributedOptimizer&&) noexcept;

  /// Makes every `.grad` undefined, so that autograd hands over fresh memory instead of adding.
  /// Called after backward() without step(), it waits like synchronize() first, on every rank.
  void zero_grad();
  /// Waits until all gradients are averaged. step() calls it; call it before clipping.
  void synchronize();
  /// synchronize(), unless that was done since the last backward, then the wrapped step().
  void step();

  torch::optim::Optimizer& wrapped();
  OptimizerStatistics statistics() const;
  void reset_statistics();

 private:
  friend class GradScaler;
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace hora
