#include "examples/vision/train/train_step.h"

#include <hora/torch/accuracy.h>
#include <torch/nn/functional/loss.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <utility>

namespace vision {

/// Sums over a step's batches, on the device.
struct TrainStep::Counts {
  torch::Tensor loss;     ///< of the batches' means
  torch::Tensor correct;  ///< top-1 and top-5
  std::int64_t images = 0;
};

TrainStep::TrainStep(const TrainStepOptions& options, Forward forward,
                     hora::DistributedOptimizer& optimizer, hora::GradScaler& scaler,
                     hora::FiniteCheck& finite)
    : options_(options),
      forward_(std::move(forward)),
      optimizer_(optimizer),
      scaler_(scaler),
      finite_(finite) {}

void TrainStep::backward(const TensorBatch& batch, Counts& counts) {
  const torch::Tensor logits = forward_(batch.images);
  const torch::Tensor loss = torch::nn::functional::cross_entropy(
      logits, batch.labels,
      torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(options_.label_smoothing));
  // Before backward, so that the logits need not be kept for it.
  const torch::Tensor correct = hora::topk_correct(logits.detach(), batch.labels);
  const torch::Tensor mean = loss.detach();
  counts.loss = counts.loss.defined() ? counts.loss + mean : mean;
  counts.correct = counts.correct.defined() ? counts.correct + correct : correct;
  counts.images += batch.labels.size(0);
  scaler_.scale(options_.accumulate == 1 ? loss : loss / options_.accumulate).backward();
}

bool TrainStep::update() {
  if (options_.clip_norm > 0) {
    scaler_.unscale_();
    optimizer_.clip_grad_norm_(options_.clip_norm);
  }
  const bool made = scaler_.step();
  scaler_.update();
  return made;
}

StepResult TrainStep::run(Batches& batches) {
  StepResult result;
  Counts counts;
  const auto waited_before = optimizer_.statistics().waited;
  optimizer_.zero_grad();
  for (int pass = 0; pass < options_.accumulate; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    const std::optional<DeviceBatch> batch = batches.next();
    if (!batch) throw std::logic_error("TrainStep: the epoch has no batch left for this step");
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    result.data_seconds += waited.count();
    backward(batch->tensors, counts);
  }
  result.non_finite = finite_.check(counts.loss);
  if (result.non_finite) {
    optimizer_.zero_grad();
    result.made = false;
  } else {
    result.made = update();
  }
  result.loss_scale = scaler_.current_scale();

  const std::chrono::duration<double> exposed = optimizer_.statistics().waited - waited_before;
  result.exposed_seconds = exposed.count();
  const torch::Tensor correct = counts.correct.cpu();
  const double percent = 100 / static_cast<double>(counts.images);
  result.loss = counts.loss.item<double>() / options_.accumulate;
  result.top1 = percent * correct[0].item<double>();
  result.top5 = percent * correct[1].item<double>();
  return result;
}

}  // namespace vision
