/// The implementation of DistributedOptimizer: the averager, and the hooks that feed it. GradScaler
/// works with it, too.
#pragma once

#include <hora/torch/distributed_optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "frameworks/torch/optimizer/backward_update.h"
#include "frameworks/torch/optimizer/fused_update.h"
#include "frameworks/torch/optimizer/gradient_averager.h"
#include "frameworks/torch/optimizer/gradient_hooks.h"
#include "frameworks/torch/optimizer/joint_broadcast.h"
#include "frameworks/torch/optimizer/loss_scale.h"
#include "frameworks/torch/optimizer/optimizer_shards.h"
#include "frameworks/torch/optimizer/rank_comparison.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// Held while a copy of its token exists: guards may nest, move, end in any order, and outlive
/// it. Thread rule: one thread at a time.
class GuardToken {
 public:
  std::shared_ptr<const void> take() const { return token_; }
  bool held() const { return token_.use_count() > 1; }

 private:
  std::shared_ptr<const void> token_ = std::make_shared<char>();
};

class BoundedWait;

/// Thread rule: one thread at a time.
class OptimizerImplementation {
 public:
  /// The GradScaler that it has, as far as it needs it.
  class Scaler {
   public:
    Scaler() = default;
    Scaler(const Scaler&) = delete;
    Scaler& operator=(const Scaler&) = delete;

    /// All that share it.
    virtual const std::vector<OptimizerImplementation*>& optimizers() const = 0;
    virtual LossScale loss_scale() const = 0;
    /// Between two steps: continues with another rank's scale.
    virtual void take(const LossScale& scale) = 0;

   protected:
    ~Scaler() = default;
  };

  /// The context and the optimizer must outlive it.
  OptimizerImplementation(const Peers& peers, torch::optim::Optimizer& optimizer,
                          std::vector<Parameter> parameters,
                          const GradientAverager::Options& averaging,
                          const DistributedOptimizerOptions& options);
  /// Discards an open round together with the other ranks; warns where they keep it waiting, and
  /// abandons it in the end (see BoundedWait). While an exception unwinds the stack it waits
  /// for nothing.
  static void destroy(std::unique_ptr<OptimizerImplementation> implementation) noexcept;
  OptimizerImplementation(const OptimizerImplementation&) = delete;
  OptimizerImplementation& operator=(const OptimizerImplementation&) = delete;

  void zero_grad();
  /// `end`: what the caller will make of the averages, if it knows.
  /// `updates`: the averages are for nothing but the step.
  void synchronize(RoundEnd end = RoundEnd::undecided, bool updates = false);
  /// Unless that was done since the last backward.
  void synchronize_once(RoundEnd end = RoundEnd::undecided, bool updates = false);
  void step();
  torch::Tensor step(const torch::optim::Optimizer::LossClosure& closure);
  /// A step whose gradients are not used.
  void skip_step() { end_step(); }
  double clip_grad_norm(double max_norm);
  void complete_parameters();
  /// The given ones at once, as together() gives them.
  static int join(const std::vector<OptimizerImplementation*>& optimizers);

  /// The implementations of optimizers of one process set. Throws Error(invalid_argument), with
  /// `user` in front, for none, a null pointer, one given twice, and several sets or contexts.
  static std::vector<OptimizerImplementation*> together(
      const std::vector<DistributedOptimizer*>& optimizers, const std::string& user);

  const GuardToken& no_sync() const { return no_sync_; }
  const GuardToken& skip_synchronize() const { return skip_synchronize_; }
  void set_backward_passes(int passes);

  /// From the next backward on `.grad` gets gradients multiplied by `factor`, and they are checked.
  /// Throws Error(invalid_use) between backward() and the end of its averaging, and where that
  /// was begun and not ended. The scaler stays where it is until end_unscaling().
  void begin_unscaling(double factor, Scaler& scaler);
  /// Likewise, between backward() and the end of its averaging.
  void check_unscaling_may_change() const;
  /// Once that was checked.
  void change_unscaling(double factor);
  void end_unscaling() noexcept;
  /// After synchronize_once(): whether any backward() has brought gradients on this rank.
  bool had_gradients() const { return had_gradients_; }
  /// After synchronize_once(): whether the averages of such gradients are finite, the same on all
  /// ranks. Waits for the device.
  bool gradients_are_finite() const { return averager_.gradients_were_finite(); }

  const Peers& peers() const { return peers_; }
  const std::string& name() const { return name_; }  ///< the prefix of its collectives
  torch::optim::Optimizer& optimizer() { return optimizer_; }
  /// The tensors that the optimizer steps on this rank, with their names.
  std::vector<OptimizerPiece> pieces() const;
  bool is_sharded() const { return shards_ != nullptr; }
  /// Throws Error(invalid_use) from backward() on until step() or zero_grad(), which `what` is not
  /// for.
  void check_between_steps(const std::string& what) const;
  OptimizerStatistics& statistics() { return statistics_; }

 private:
  /// Updates, behind each hook, what can be updated (Sharding::in_backward).
  void update_in_backward();
  /// Throws Error(invalid_use) where backward() is the step itself: `what` does not go with that.
  void refuse_in_backward(const std::string& what) const;
  /// Gradients have been averaged, and none has come since.
  bool is_synchronized() const;
  void refuse_new_parameters() const;
  [[noreturn]] void refuse_use(const std::string& what) const;
  /// One call of the user's closure: its gradients and its loss are the ranks' averages then.
  torch::Tensor evaluate(const torch::optim::Optimizer::LossClosure& closure);
  /// The wrapped optimizer has stepped.
  void finish_step();
  /// Between backward() and the end of its averaging.
  void refuse_under_way(const std::string& what) const;
  [[noreturn]] void refuse_step_apart() const;
  void check_can_join(const std::vector<OptimizerImplementation*>& together) const;
  /// Takes the parameters, the state and the loss's scale of the rank that has averaged most often:
  /// `last`, or another one where `last` has waited in the join() of another optimizer. Gives it.
  /// Collective.
  int become_most_trained(int last);
  void take_progress(int root);
  void submit_round(RoundEnd end, bool updates = false);
  GradientAverager::Cost finish_round();
  /// synchronize_once(); then all ranks are to step, and can.
  void synchronize_to_step(bool updates = false);
  /// False: collectives are left under way.
  bool discard_open_round() noexcept;
  bool end_open_round(BoundedWait& wait);
  bool discard_open_round(BoundedWait& wait);
  std::string destroyed_text(const std::string& what) const;
  void drop_gradients();
  void end_step();
  std::vector<at::Tensor> averaged_gradients() const;

  const Peers peers_;
  const std::string name_;
  const bool hooked_;
  const ReduceOp loss_op_;
  torch::optim::Optimizer& optimizer_;
  GradientAverager averager_;
  GradientHooks hooks_;                      // after averager_: destroyed first
  std::optional<ParameterWindows> windows_;  ///< with fused_
  std::unique_ptr<OptimizerShards> shards_;  ///< where the state is sharded
  std::optional<FusedUpdate> fused_;         ///< where the pass that averages can update
  std::optional<BackwardUpdate> backward_;   ///< where it can do so while backward goes on
  JointBroadcast buffers_;
  std::optional<RankComparison> comparison_;  ///< where options.compare_ranks
  const bool broadcasts_buffers_;
  const bool overlaps_gather_;
  const bool updates_in_backward_;
  std::unordered_set<const void*> known_;  ///< in the optimizer's groups
  bool synchronized_ = false;
  bool had_gradients_ = false;
  std::int64_t rounds_ = 0;  ///< since join(): equal on all ranks, whatever they call
  std::int64_t steps_ = 0;   ///< ever; equal on all ranks but while some have joined
  GuardToken no_sync_;
  GuardToken skip_synchronize_;
  Scaler* scaler_ = nullptr;
  OptimizerStatistics statistics_;
};

}  // namespace hora::internal
