/// One step of a training: from the next batches to new weights.
#pragma once

#include <hora/torch/distributed_optimizer.h>
#include <hora/torch/finite_check.h>
#include <hora/torch/grad_scaler.h>

#include <functional>
#include <optional>

#include "examples/vision/train/batches.h"

namespace vision {

struct TrainStepOptions {
  /// Batches of one step; as many as DistributedOptimizerOptions::backward_passes_per_step.
  int accumulate = 1;
  /// Within [0, 1): a share of the target is spread over all classes (Szegedy et al., "Rethinking
  /// the Inception Architecture", arXiv 1512.00567, section 7).
  double label_smoothing = 0;
  /// Largest 2-norm of all ranks' averaged gradients together; 0: any.
  double clip_norm = 0;
};

/// Of this rank's images.
struct StepResult {
  double loss = 0;  ///< mean
  double top1 = 0;  ///< percent
  double top5 = 0;
  bool made = true;            ///< false: left out, for its loss or gradients were not finite
  double loss_scale = 1;       ///< of the next step
  double data_seconds = 0;     ///< of the step, without data
  double exposed_seconds = 0;  ///< of the step, waiting for averages
  /// For what FiniteCheck has left the step out: the same on all ranks.
  std::optional<hora::NonFinite> non_finite = {};
};

/// Logits of images, in float32.
using Forward = std::function<torch::Tensor(const torch::Tensor& images)>;

/// Thread rule: one thread. Everything given must outlive it.
class TrainStep {
 public:
  TrainStep(const TrainStepOptions& options, Forward forward, hora::DistributedOptimizer& optimizer,
            hora::GradScaler& scaler, hora::FiniteCheck& finite);

  /// Takes the next `accumulate` batches, which are equally large, from a running epoch: their
  /// gradients are those of one batch of all their images, but for BatchNorm's statistics.
  /// Collective. Throws std::logic_error where the epoch has no more batches, and what FiniteCheck
  /// throws by its policy.
  StepResult run(Batches& batches);

 private:
  struct Counts;
  void backward(const TensorBatch& batch, Counts& counts);
  /// Whether the step was made.
  bool update();

  const TrainStepOptions options_;
  const Forward forward_;
  hora::DistributedOptimizer& optimizer_;
  hora::GradScaler& scaler_;
  hora::FiniteCheck& finite_;
};

}  // namespace vision
