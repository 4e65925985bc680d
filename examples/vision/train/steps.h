/// Steps over the batches of a data set: of a training, and of a validation.
#pragma once

#include <hora/torch.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "examples/vision/data/dataset.h"
#include "examples/vision/data/loader.h"
#include "examples/vision/data/transform.h"
#include "examples/vision/logs/progress.h"
#include "examples/vision/train/options.h"
#include "examples/vision/train/stop_request.h"

namespace vision {

double seconds_since(std::chrono::steady_clock::time_point start);

/// On the device, for its current stream.
struct TensorBatch {
  torch::Tensor images;  ///< float32, samples x 3 x height x width, channels last with that layout
  torch::Tensor labels;  ///< int64, one for each sample
  /// The samples, ascending, that hold another image, because theirs was bad.
  std::vector<std::size_t> replaced = {};
};

/// A data set's batches where the network computes. Thread rule: one thread. Errors: as Loader's.
class Batches {
 public:
  /// `data` must outlive it; the loader's allocator is chosen by the device.
  Batches(const Dataset& data, const TransformOptions& transform, LoaderOptions loader,
          const torch::Device& device);

  /// Begins an epoch at batch `first` of `samples`.
  void start(std::uint64_t epoch, std::vector<std::size_t> samples, std::size_t first = 0);
  /// Nothing after the epoch's last batch. To a GPU the tensors are copied in its current stream's
  /// order, and the copy may go on after the return.
  std::optional<TensorBatch> next();
  /// Seconds in which the caller had no data, since start().
  double waited() const { return loader_.waited(); }

 private:
  Layout layout_;
  torch::Device device_;
  Loader loader_;
  CopiedBatches copies_;
};

/// This rank's images. train_step() sets loss, top1, top5, data_seconds and exposed_seconds.
struct StepResult : TrainingStep {
  bool made = true;       ///< false: left out, for its loss or gradients were not finite
  double loss_scale = 1;  ///< of the next step
  /// For what FiniteCheck has left the step out: the same on all ranks.
  std::optional<hora::NonFinite> non_finite = {};
};

/// Logits of images, in float32.
using Forward = std::function<torch::Tensor(const torch::Tensor& images)>;

/// Takes the next batches, as many as the options accumulate: their gradients are those of one
/// batch of all their images, but for BatchNorm's statistics. Labels are smoothed as in Szegedy et
/// al., arXiv 1512.00567, section 7. Collective. Throws std::logic_error where the epoch has no
/// more batches, and what FiniteCheck throws by its policy.
StepResult train_step(const TrainingOptions& options, const Forward& forward, Batches& batches,
                      hora::DistributedOptimizer& optimizer, hora::GradScaler& scaler,
                      hora::FiniteCheck& finite);

/// All ranks' together.
struct ValidationResult {
  std::int64_t images = 0;        ///< counted
  std::int64_t top1_correct = 0;  ///< the label's logit is the largest
  double top1 = 0;                ///< percent
  double top5 = 0;
  double seconds = 0;
  bool stopped = false;  ///< before the end; then nothing is counted
};

/// Accuracy on images each of which counts once, whatever the number of ranks. Thread rule: one
/// thread. What is given must outlive it.
class Validation {
 public:
  Validation(const hora::Context& world, const Dataset& data, const TransformOptions& transform,
             const LoaderOptions& loader, const torch::Device& device, torch::nn::Module& model,
             Forward forward);

  /// Each rank counts its share, in evaluation mode, with rank 0's buffers (BatchNorm's running
  /// statistics), which all keep. `stop` is polled after each batch. Collective. Throws
  /// std::logic_error where the shares are not the whole set.
  ValidationResult run(StopRequest& stop);

 private:
  const hora::Context& world_;
  const hora::DistributedSampler sampler_;
  Batches batches_;
  torch::nn::Module& model_;
  const Forward forward_;
};

}  // namespace vision
