/// Loss scaling for training in float16.
#pragma once

#include <hora/export.h>
#include <hora/torch/distributed_optimizer.h>
#include <hora/torch/grad_scaler_options.h>

#include <memory>
#include <vector>

namespace HORA_EXPORT hora {

/// What a GradScaler has learned.
struct GradScalerState {
  double scale = 1.0;    ///< of the loss
  int finite_steps = 0;  ///< since the scale changed last
};

/// Multiplies the loss so that small gradients do not vanish in float16, divides the gradients by
/// the same factor on their way into `.grad`, and leaves out a step whose gradients are not all
/// finite.
///
///     hora::GradScaler scaler(optimizer);
///     for (auto& batch : *loader) {
///       optimizer.zero_grad();
///       scaler.scale(loss_of(model, batch)).backward();
///       scaler.step();                                   // in place of optimizer.step()
///       scaler.update();
///     }
///
/// From construction to destruction the optimizer expects gradients of a scaled loss. Dividing
/// takes no pass of its own: the pass that copies gradients into their buckets does it, or, where
/// they travel in float16, the one that brings them back. Wherever `.grad` holds averages (after
/// unscale_(), step() or the optimizer's synchronize()), they are divided; clip them between
/// unscale_() and step().
///
/// Ranks decide alike without extra communication: what a rank finds travels with its gradients,
/// and so do infinities and NaN in float16. So all scales are equal: the constructor compares
/// the options, each update() follows from them and from decisions that all ranks share, and calls
/// out of turn, by which one rank's scale could become different, are errors on that rank.
///
/// Optimizers whose gradients come from one loss share a GradScaler, `GradScaler scaler({&a, &b})`:
/// they have one scale, and all step or none does. With one each, an overflow in one would make
/// the scales differ, and the other's gradients be divided by a factor the loss never had. So
/// gradients of a loss that this GradScaler has not scaled are an error.
///
/// A gradient counts as not finite, too, where it is so large (above 1e38 / number of ranks in
/// float32 and bfloat16) that averaging it could overflow.
///
/// step() and unscale_() wait for the device, to learn whether gradients are finite (as torch.amp's
/// do). Collective: construct it on every rank, with the same options, else every rank throws the
/// same Error(mismatch). The optimizers must outlive it (they may be moved), and have one
/// GradScaler at a time. Thread rule: one thread at a time.
class GradScaler {
 public:
  /// Throws Error(invalid_argument) for options out of range, Error(invalid_use) between backward()
  /// and the optimizer's step(), and for an optimizer that has one.
  explicit GradScaler(DistributedOptimizer& optimizer, const GradScalerOptions& options = {});
  /// In the same order on every rank, else the same Error(mismatch) on all. Throws
  /// Error(invalid_argument) for none, a null pointer, or optimizers of several process sets.
  explicit GradScaler(const std::vector<DistributedOptimizer*>& optimizers,
                      const GradScalerOptions& options = {});
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;

  torch::Tensor scale(const torch::Tensor& loss) const;
  /// Waits until all gradients are averaged, and divided. Throws Error(invalid_use) when it was
  /// called since the last update(), and when gradients have come, but not by a loss that scale()
  /// has given since then.
  void unscale_();
  /// unscale_(), unless that was done, then each wrapped optimizer's step if every gradient of all
  /// is finite. True if they stepped; where they did not, option buffers become the first rank's
  /// all the same. Throws Error(invalid_use) when it was called since the last update().
  bool step();
  /// Adapts the scale to what the step has found. Throws Error(invalid_use) before a step and after
  /// the next backward().
  void update();

  double current_scale() const;

  /// For a checkpoint, after update().
  GradScalerState state() const;
  /// Continues with it, the same on every rank, before the next scale(). Throws
  /// Error(invalid_argument) for a scale that is not above 0 and finite, Error(invalid_use) after
  /// backward(). Nothing where options.enabled is false.
  void set_state(const GradScalerState& state);

 private:
  struct HORA_HIDDEN State;
  std::unique_ptr<State> state_;
};

}  // namespace hora
