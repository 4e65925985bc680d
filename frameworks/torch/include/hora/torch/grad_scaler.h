/// Loss scaling for training in float16.
#pragma once

#include <hora/export.h>

#include <memory>
#include <vector>

namespace at {
class Tensor;
}  // namespace at

namespace HORA_EXPORT hora {

class DistributedOptimizer;

/// As torch.amp's. Both factors 1: the scale stays as it is, and steps with gradients that are not
/// finite are left out all the same.
struct GradScalerOptions {
  double initial_scale = 65536.0;  ///< > 0
  double growth_factor = 2.0;      ///< >= 1: after `growth_interval` steps with finite gradients
  double backoff_factor = 0.5;     ///< within (0, 1]: after a step with a gradient that is not
  int growth_interval = 2000;      ///< steps, >= 1
  bool enabled = true;  ///< false: scale 1, nothing is checked, step() is the optimizers' own
};

/// Learned by a GradScaler.
struct GradScalerState {
  double scale = 1.0;    ///< of the loss
  int finite_steps = 0;  ///< since the scale changed last
};

/// Multiplies the loss so that small gradients do not vanish in float16, divides gradients on their
/// way into `.grad`, and leaves out a step, on all ranks, whose gradients are not all finite.
///
///     hora::GradScaler scaler(optimizer);
///     for (auto& batch : *loader) {
///       optimizer.zero_grad();
///       scaler.scale(loss_of(model, batch)).backward();
///       scaler.step();                                   // in place of optimizer.step()
///       scaler.update();
///     }
///
/// `.grad` holds divided averages after unscale_(), step() or synchronize(): clip between
/// unscale_() and step(). Gradients above 1e38 / ranks (float32, bfloat16) count as not finite.
///
/// Collective: the same options on every rank, else all throw the same Error(mismatch). The
/// optimizers must outlive it (they may be moved), and have one GradScaler at a time. Thread rule:
/// one thread at a time.
class GradScaler {
 public:
  /// Throws Error(invalid_argument) for options out of range, Error(invalid_use) between backward()
  /// and step(), and for an optimizer that has one.
  explicit GradScaler(DistributedOptimizer& optimizer, const GradScalerOptions& options = {});
  /// For optimizers of one loss, in the same order on every rank: all step or none. Throws
  /// Error(invalid_argument), too, for none, a null pointer, or several process sets.
  explicit GradScaler(const std::vector<DistributedOptimizer*>& optimizers,
                      const GradScalerOptions& options = {});
  ~GradScaler();
  GradScaler(GradScaler&&) noexcept;
  GradScaler& operator=(GradScaler&&) noexcept;

  at::Tensor scale(const at::Tensor& loss) const;
  /// Waits until all gradients are averaged and divided, and for the device. Throws
  /// Error(invalid_use) the second time since update(), and where gradients are of another loss
  /// than scale()'s since then.
  void unscale_();
  /// unscale_(), unless that was done, then each wrapped step if all gradients are finite; true if
  /// so. Buffers become the first rank's either way. Throws Error(invalid_use) the second time
  /// since update().
  bool step();
  /// Adapts the scale. Throws Error(invalid_use) before a step and after the next backward().
  void update();

  double current_scale() const;

  /// For a checkpoint, after update().
  GradScalerState state() const;
  /// Continues with it before the next scale(), the same on every rank; nothing unless enabled.
  /// Throws Error(invalid_argument) for a scale not above 0 and finite, Error(invalid_use) after
  /// backward().
  void set_state(const GradScalerState& state);

 private:
  struct HORA_HIDDEN State;
  std::unique_ptr<State> state_;
};

}  // namespace hora
