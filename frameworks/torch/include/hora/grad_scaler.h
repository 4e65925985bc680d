/// Loss scaling for training in float16.
#pragma once

#include <hora/grad_scaler_options.h>
#include <hora/torch.h>

#include <memory>

namespace hora {

/// Multiplies the loss so that small gradients do not vanish in float16, divides the averaged
/// gradients by the same factor, and leaves out a step whose gradients are not all finite. Ranks
/// decide alike without asking one another: a rank's infinity or NaN is in the average, which all
/// have to the bit.
///
///   optimizer.zero_grad();
///   scaler.scale(loss_of(model, batch)).backward();
///   scaler.step(optimizer);
///   scaler.update();
///
/// For clipping, call unscale_() between. Waits for the device once a step, to learn whether
/// gradients are finite (as torch.amp does).
/// Thread rule: one thread at a time.
class GradScaler {
 public:
  /// Throws Error(invalid_argument) for options out of range.
  explicit GradScaler(const GradScalerOptions& options = {});
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;

  torch::Tensor scale(const torch::Tensor& loss) const;
  /// Waits until all gradients are averaged and divides them. Throws Error(invalid_use) when they
  /// have been divided since the last update().
  void unscale_(DistributedOptimizer& optimizer);
  /// unscale_(), unless that was done, then the wrapped optimizer's step if every gradient is
  /// finite. True if it stepped.
  bool step(DistributedOptimizer& optimizer);
  /// Adapts the scale to what the steps since the last call have found.
  void update();

  double current_scale() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hora
