#include "examples/vision/train/data_parallel.h"

#include <torch/cuda.h>

#include <stdexcept>
#include <utility>

namespace vision {

std::vector<torch::Device> all_gpus() {
  const std::size_t count = torch::cuda::device_count();
  if (count == 0) {
    throw std::runtime_error(
        "--mode data-parallel trains with all GPUs of one process, and this one sees none; take "
        "--mode single, or --mode distributed with several ranks");
  }
  std::vector<torch::Device> gpus;
  for (std::size_t i = 0; i < count; ++i) {
    gpus.emplace_back(torch::kCUDA, static_cast<torch::DeviceIndex>(i));
  }
  return gpus;
}

ReplicatedModel::ReplicatedModel(std::shared_ptr<Classifier> model, const Precision& precision)
    : model_(std::move(model)), precision_(precision) {
  register_module("model", model_);
}

torch::Tensor ReplicatedModel::forward(const torch::Tensor& images) {
  const torch::AutoGradMode mode(records_);
  return precision_.logits(*model_, images);
}

std::shared_ptr<torch::nn::Module> ReplicatedModel::clone(
    const torch::optional<torch::Device>& device) const {
  auto model = std::dynamic_pointer_cast<Classifier>(model_->clone(device));
  if (!first_replica_) first_replica_ = model;
  auto copy = std::make_shared<ReplicatedModel>(std::move(model), precision_);
  copy->records_ = records_;
  return copy;
}

void ReplicatedModel::begin_step() {
  first_replica_.reset();
  records_ = torch::GradMode::is_enabled();
}

void ReplicatedModel::end_step() {
  if (!first_replica_ || !model_->is_training()) return;
  const torch::NoGradGuard no_grad;
  const auto replicas = first_replica_->named_buffers();
  for (auto& buffer : model_->named_buffers()) {
    buffer.value().copy_(replicas[buffer.key()]);
  }
  first_replica_.reset();
}

DataParallel::DataParallel(std::shared_ptr<Classifier> model, const Precision& precision,
                           std::vector<torch::Device> devices)
    : model_(std::make_shared<ReplicatedModel>(std::move(model), precision)),
      devices_(std::move(devices)) {}

}  // namespace vision
