/// The implementation of DistributedOptimizer: hooks feed rounds of averaging, whose averages the
/// wrapped optimizer steps with. GradScaler and checkpoints work with it, too.
#pragma once

#include <hora/torch/grad_scaler.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <unordered_set>

#include "frameworks/torch/optimizer/shards.h"

namespace hora::internal {

/// LibTorch's hooks before and after the accumulation of gradients. Calls `before(i)` when autograd
/// is about to add to parameter i's `.grad`, and `after(i, ..)` when it has, with the gradient that
/// it is about to drop: once in each backward() that reaches it. What they throw comes out of that.
/// A parameter has such hooks once. Thread rule: one thread at a time, not during backward().
class GradientHooks {
 public:
  using Hook = std::function<void(std::size_t)>;
  using HookAfter = std::function<void(std::size_t, const at::Tensor& delivered)>;
  /// Throws as refresh().
  GradientHooks(const std::vector<Parameter>& parameters, Hook before, HookAfter after);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  /// Hooks parameters that were frozen, on which LibTorch takes none, and those whose accumulator
  /// is another, as after a change of type and back. Throws Error(invalid_use) naming one that has
  /// another GradientHooks's; none is hooked anew then.
  void refresh();

  /// Whether some GradientHooks has its hooks on it.
  static bool hooked(const at::Tensor& parameter);

 private:
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));
  struct HookedParameter {
    Parameter parameter;
    // Nothing else keeps it alive between two forward passes, and the hook is destroyed with it.
    Accumulator accumulator;
    std::uintptr_t after_key = 0;
    unsigned before_position = 0;
  };

  Hook before_;
  HookAfter after_;
  std::vector<HookedParameter> entries_;
};

/// It calls its closure several times a step, and compares the results (LBFGS).
bool evaluates_again(const torch::optim::Optimizer& optimizer);
/// The named parameters that the optimizer's groups hold, in order of registration. Throws
/// Error(invalid_argument) where they, or options, are not for this optimizer.
std::vector<Parameter> select_parameters(
    const Peers& peers, const torch::optim::Optimizer& optimizer,
    const torch::OrderedDict<std::string, torch::Tensor>& named,
    const DistributedOptimizerOptions& options);
/// Each throws Error(invalid_argument) naming the option. round_options() is collective: the same
/// Error(mismatch) on every rank where parameters, buffers or options differ, for bucket by bucket
/// only lengths would.
void check_backward_passes(int passes);
RoundOptions round_options(const Peers& peers, const torch::optim::Optimizer& optimizer,
                           const std::vector<Parameter>& parameters,
                           const DistributedOptimizerOptions& options);

/// Scale of the loss. Pure.
struct LossScale {
  double scale = 1.0;
  int finite_steps = 0;  ///< since the scale changed last
  bool operator==(const LossScale&) const = default;
};

/// The scale after a step: dynamic loss scaling (Micikevicius et al., arXiv 1710.03740, section
/// 3.2) with torch.amp's rule, within the normal numbers of float32.
LossScale next_scale(const LossScale& now, const GradScalerOptions& options, bool finite);
/// Throws Error(invalid_argument) naming the option, its value and what is allowed.
void check_options(const GradScalerOptions& options);
std::string describe(const GradScalerOptions& options);

/// Clips by the global norm (Pascanu, Mikolov, Bengio, 2013, arXiv 1211.5063, section 3.2): all are
/// multiplied by max_norm / (norm + 1e-6) where that is below 1 or not a number. Gives the norm,
/// the same bits everywhere. Collective, under `name`. `shared`: all ranks hold the same gradients,
/// of which each squares a part, and those of ranks that have joined; else each its own. `device`:
/// there squares are added up (in float32 within a tensor, in float64 over tensors), and the factor
/// is rounded to the gradients' type; the host waits for it once, again where a rank has joined.
/// Nothing: on the CPU, by hora's kernels.
double clip(const Peers& peers, const std::string& name, const std::vector<at::Tensor>& gradients,
            bool shared, double max_norm, const std::optional<at::Device>& device);

class OptimizerImplementation;

/// A GradScaler, as far as its optimizers need it. Thread rule: one thread at a time.
struct LossScaling {
  /// Continues with this scale. Throws as check_unscaling_may_change().
  void take(const LossScale& next);

  std::vector<OptimizerImplementation*> optimizers = {};  ///< all that share it
  LossScale scale = {};
  enum class Phase { scaled, unscaled, stepped } phase = Phase::scaled;  ///< in a step
  bool scaled_a_loss = false;                                            ///< since the last update
  bool finite = true;                                                    ///< the step's gradients
};

/// Held while a copy of it exists: guards may nest, move, end in any order, and outlive it.
using GuardToken = std::shared_ptr<const void>;
inline bool held(const GuardToken& token) {
  return token.use_count() > 1;
}

/// Thread rule: one thread at a time.
class OptimizerImplementation {
 public:
  /// The context and the optimizer must outlive it.
  OptimizerImplementation(const Peers& peers, torch::optim::Optimizer& optimizer,
                          std::vector<Parameter> parameters, const RoundOptions& rounds,
                          const DistributedOptimizerOptions& options);
  /// Discards an open round together with the other ranks. Warns after HORA_STALL_WARNING (0: its
  /// default) that they keep it waiting, and abandons the round after as long again. While an
  /// exception unwinds the stack it waits for nothing.
  static void destroy(std::unique_ptr<OptimizerImplementation> implementation) noexcept;

  void zero_grad();
  /// `end`: what the caller will make of the averages. `updates`: they are for the step alone.
  void synchronize(RoundEnd end = RoundEnd::undecided, bool updates = false);
  /// Unless that was done since the last backward.
  void synchronize_once(RoundEnd end = RoundEnd::undecided, bool updates = false);
  void step();
  torch::Tensor step(const torch::optim::Optimizer::LossClosure& closure);
  /// Once the averages are to be used, or left out.
  void end_step();
  double clip_grad_norm(double max_norm);
  void complete_parameters();
  static int join(const std::vector<OptimizerImplementation*>& optimizers);

  /// The implementations of optimizers of one process set. Throws Error(invalid_argument), with
  /// `user` in front, for none, a null pointer, one given twice, and several sets or contexts.
  static std::vector<OptimizerImplementation*> together(
      const std::vector<DistributedOptimizer*>& optimizers, const std::string& user);

  const GuardToken& no_sync() const { return no_sync_; }
  const GuardToken& skip_synchronize() const { return skip_synchronize_; }
  void set_backward_passes(int passes);

  /// From the next backward on `.grad` gets gradients divided by the scale, and they are checked.
  /// `scaling` stays where it is until end_unscaling().
  void begin_unscaling(LossScaling& scaling);
  /// Throws Error(invalid_use) between backward() and the end of its averaging.
  void check_unscaling_may_change() const;
  void change_unscaling(double factor) { round_.unscale_by(factor); }
  void end_unscaling() noexcept;
  /// After synchronize_once(): whether any backward() has brought gradients on this rank.
  bool had_gradients() const { return had_gradients_; }
  /// Then, and the same on all ranks: whether the averages are finite. Waits for the device.
  bool gradients_are_finite() const { return round_.gradients_were_finite(); }

  const Peers& peers() const { return peers_; }
  const std::string& name() const { return name_; }  ///< the prefix of its collectives
  torch::optim::Optimizer& optimizer() { return optimizer_; }
  /// The tensors that the optimizer steps on this rank, with their names.
  std::vector<OptimizerPiece> pieces() const;
  bool is_sharded() const { return shards_ != nullptr; }
  /// Whether only step(), after the averages have come, changes parameters and state.
  bool changes_in_step_alone() const { return !fused_ && !evaluates_again(optimizer_); }
  /// Called before each such change; empty: nothing is. One Checkpoint at a time.
  void set_before_change(std::function<void()> before) { before_change_ = std::move(before); }
  /// Throws Error(invalid_use) for `what` from backward() on until step() or zero_grad().
  void check_between_steps(const std::string& what) const;
  OptimizerStatistics& statistics() { return statistics_; }

 private:
  void update_in_backward();
  /// Gradients have been averaged, and none has come since.
  bool is_synchronized() const { return synchronized_ && !round_.has_gradients(); }
  [[noreturn]] void fail(ErrorCode code, const std::string& text) const;
  [[noreturn]] void refuse(const std::string& what) const;
  void refuse_in_backward(const std::string& what) const;
  void refuse_new_parameters() const;
  void check_can_join(const std::vector<OptimizerImplementation*>& together) const;
  /// One call of the user's closure: its gradients and its loss are the ranks' averages then.
  torch::Tensor evaluate(const torch::optim::Optimizer::LossClosure& closure);
  /// Takes the parameters, the state and the loss's scale of the rank that has averaged most often
  /// and gives it: `last`, unless that has waited in the join() of another optimizer. Collective.
  int become_most_trained(int last);
  void submit_round(RoundEnd end, bool updates);
  void finish_round();
  /// synchronize_once(); then all ranks are to step, and can.
  void synchronize_to_step(bool updates);
  void finish_step();
  void drop_gradients();
  /// Blocks until something is reached, which is polled; false: it has given up, see destroy().
  using Wait = std::function<bool(const std::function<bool()>& reached)>;
  /// False: collectives are left under way.
  bool discard_open_round(const Wait& wait);
  bool end_open_round();
  std::string destroyed_text(const std::string& what) const;

  const Peers peers_;
  const std::string name_;
  const DistributedOptimizerOptions options_;
  torch::optim::Optimizer& optimizer_;
  Round round_;
  GradientHooks hooks_;                      // after round_: destroyed first
  std::unique_ptr<OptimizerShards> shards_;  ///< where the state is sharded
  std::unique_ptr<FusedUpdate> fused_;       ///< where the pass that averages can update
  JointBroadcast buffers_;
  RankComparison comparison_;
  std::unordered_set<const void*> known_;  ///< in the optimizer's groups
  bool synchronized_ = false;
  bool had_gradients_ = false;
  std::int64_t rounds_ = 0;  ///< since join(): equal on all ranks, whatever they call
  std::int64_t steps_ = 0;   ///< ever; equal on all ranks but while some have joined
  const GuardToken no_sync_ = std::make_shared<char>();
  const GuardToken skip_synchronize_ = std::make_shared<char>();
  LossScaling* scaling_ = nullptr;
  std::function<void()> before_change_;
  OptimizerStatistics statistics_;
};

}  // namespace hora::internal
