#include "examples/vision/train/precision.h"

#include <ATen/autocast_mode.h>
#include <spdlog/fmt/fmt.h>
#include <torch/cuda.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/version.h>

#include <functional>
#include <stdexcept>
#include <utility>

namespace vision {
namespace {

/// As torch.autocast in Python, of this thread.
void set_autocast(torch::DeviceType device, torch::ScalarType half, bool on) {
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 204
  at::autocast::set_autocast_dtype(device, half);
  at::autocast::set_autocast_enabled(device, on);
#else
  if (device == torch::kCUDA) {
    at::autocast::set_autocast_gpu_dtype(half);
    at::autocast::set_enabled(on);
  } else {
    at::autocast::set_autocast_cpu_dtype(half);
    at::autocast::set_cpu_enabled(on);
  }
#endif
}

/// A layer's member, and the parameter that is registered for it.
using Masters = std::vector<std::pair<torch::Tensor*, torch::Tensor>>;

/// Gives the layer a weight and a bias in `half`. Autograd records the copying.
template <class Layer>
void convert(Layer& layer, torch::ScalarType half, Masters& masters) {
  for (torch::Tensor* const member : {&layer.weight, &layer.bias}) {
    if (!member->defined() || member->scalar_type() == half) continue;  // a layer may come twice
    masters.emplace_back(member, *member);
    *member = member->to(half);
  }
}

struct AtEnd {
  std::function<void()> call;
  ~AtEnd() { call(); }
};

torch::ScalarType half_of(const torch::Device& device, Amp amp) {
  if (amp == Amp::float16 && !device.is_cuda()) {
    throw std::runtime_error("--amp fp16 needs --device cuda; on the CPU, use --amp bf16");
  }
  return amp != Amp::bfloat16 && device.is_cuda() ? torch::kHalf : torch::kBFloat16;
}

}  // namespace

Precision::Precision(const torch::Device& device, const PrecisionOptions& options)
    : device_(device),
      options_(options),
      level_(options.opt_level.value_or(options.amp == Amp::off ? OptLevel::O0 : OptLevel::O1)),
      half_(level_ == OptLevel::O0 ? torch::kFloat32 : half_of(device, options.amp)) {}

torch::Tensor Precision::logits(Classifier& model, const torch::Tensor& images) const {
  if (level_ == OptLevel::O0) return model.forward(images);
  if (level_ == OptLevel::O1) {
    set_autocast(device_.type(), half_, true);
    const AtEnd end{[this] {
      at::autocast::clear_cache();  // the weights' copies in 16 bits are of this step alone
      set_autocast(device_.type(), half_, false);
    }};
    return model.forward(images).to(torch::kFloat32);
  }
  // Convolutions and linear layers compute with copies of the float32 masters, all else, such as
  // BatchNorm, in float32 (Micikevicius et al., arXiv 1710.03740, section 3.1).
  Masters masters;
  const AtEnd end{[&masters] {
    for (const auto& [member, master] : masters) *member = master;
  }};
  for (const auto& layer : model.modules()) {
    if (auto* const convolution = layer->as<torch::nn::Conv2d>()) {
      convert(*convolution, half_, masters);
    } else if (auto* const linear = layer->as<torch::nn::Linear>()) {
      convert(*linear, half_, masters);
    }
  }
  return model.forward(images.to(half_)).to(torch::kFloat32);
}

hora::GradScalerOptions Precision::scaler() const {
  if (level_ == OptLevel::O0 || options_.amp == Amp::bfloat16) return {.enabled = false};
  if (!options_.loss_scale) return {};
  return {.initial_scale = *options_.loss_scale, .growth_factor = 1.0, .backoff_factor = 1.0};
}

std::string Precision::describe() const {
  if (level_ == OptLevel::O0) return "float32";
  const std::string type = half_ == torch::kHalf ? "float16" : "bfloat16";
  std::string text = options_.opt_level ? (level_ == OptLevel::O1 ? "O1: " : "O2: ") : "";
  text += type;
  text += level_ == OptLevel::O1 ? " (autocast)" : " model, BatchNorm and master weights float32";
  if (scaler().enabled) {
    text += options_.loss_scale ? fmt::format(", loss scale {:g}", *options_.loss_scale)
                                : ", dynamic loss scale";
  }
  if (options_.amp == Amp::off && half_ == torch::kBFloat16) {
    text += "; float16 needs a GPU";
  }
  return text;
}

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
  return std::make_shared<ReplicatedModel>(std::move(model), precision_);
}

void ReplicatedModel::keep_statistics() {
  if (!first_replica_ || !model_->is_training()) return;
  const torch::NoGradGuard no_grad;
  const auto replicas = first_replica_->named_buffers();
  for (auto& buffer : model_->named_buffers()) {
    buffer.value().copy_(replicas[buffer.key()]);
  }
}

}  // namespace vision
