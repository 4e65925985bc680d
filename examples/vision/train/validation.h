/// Accuracy on the validation images, each of which counts once, whatever the number of ranks.
#pragma once

#include <hora/context.h>
#include <hora/torch/distributed_sampler.h>
#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>

#include "examples/vision/train/batches.h"
#include "examples/vision/train/stop_request.h"
#include "examples/vision/train/train_step.h"

namespace vision {

/// Of all ranks.
struct ValidationResult {
  std::int64_t images = 0;        ///< counted
  std::int64_t top1_correct = 0;  ///< the label's logit is the largest
  std::int64_t top5_correct = 0;  ///< the label's logit is among the five largest
  double seconds = 0;
  bool stopped = false;  ///< before the end; then nothing is counted

  double top1() const;  ///< percent
  double top5() const;  ///< percent
};

/// Thread rule: one thread. Everything given must outlive it.
class Validation {
 public:
  Validation(const hora::Context& world, const Dataset& data, const TransformOptions& transform,
             const LoaderOptions& loader, const torch::Device& device, torch::nn::Module& model,
             Forward forward);

  /// Each rank counts its share of the images with rank 0's buffers (BatchNorm's running
  /// statistics), which all ranks keep; the model is in evaluation mode then. Collective. Throws
  /// std::logic_error where the shares are not the whole set. `stop`, which may be null, is polled
  /// after each batch.
  ValidationResult run(StopRequest* stop = nullptr);

 private:
  ValidationResult count(StopRequest* stop);

  const hora::Context& world_;
  const hora::DistributedSampler sampler_;
  Batches batches_;
  torch::nn::Module& model_;
  const Forward forward_;
};

}  // namespace vision
