#include "bench/training_step/contenders.h"

#include <algorithm>

namespace bench {

PlainStep::PlainStep(const StepOptions& options)
    : model_(10, options.stem),
      sgd_(model_->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)),
      images_(torch::randn({options.batch, 3, 32, 32})),
      labels_(torch::randint(10, {options.batch}, torch::kLong)) {}

void PlainStep::run() {
  for (auto& parameter : model_->parameters()) parameter.mutable_grad().reset();
  forward_and_backward();
  sgd_.step();
}

void PlainStep::forward_and_backward() {
  torch::cross_entropy_loss(model_->forward(images_), labels_).backward();
}

AveragedStep::AveragedStep(const hora::Context& world, const StepOptions& options,
                           hora::Compression compression)
    : world_(world), plain_(options) {
  hora::broadcast_parameters(world, *plain_.model());
  optimizer_.emplace(world, plain_.sgd(), plain_.model()->named_parameters(),
                     hora::DistributedOptimizerOptions{.bucket_bytes = options.bucket_bytes,
                                                       .compression = compression});
}

void AveragedStep::run() {
  optimizer_->zero_grad();
  plain_.forward_and_backward();
  optimizer_->step();
}

std::vector<torch::Tensor> AveragedStep::copy_of_weights() {
  std::vector<torch::Tensor> copies;
  for (const auto& weight : plain_.model()->parameters()) {
    copies.push_back(weight.detach().clone());
  }
  return copies;
}

double AveragedStep::error_of_gradients(const std::vector<torch::Tensor>& weights) {
  const torch::NoGradGuard no_grad;
  auto parameters = plain_.model()->parameters();
  std::vector<torch::Tensor> averaged;
  for (const auto& parameter : parameters) averaged.push_back(parameter.grad().to(torch::kDouble));

  optimizer_.reset();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].copy_(weights[i]);
    parameters[i].mutable_grad().reset();
  }
  {
    const torch::AutoGradMode grad(true);
    plain_.forward_and_backward();
  }
  double worst = 0.0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto expected = hora::allreduce(world_, parameters[i].grad().to(torch::kDouble));
    const auto error = (averaged[i] - expected).abs().max();
    worst = std::max(worst, (error / expected.abs().max().clamp_min(1e-30)).item<double>());
  }
  return worst;
}

}  // namespace bench
