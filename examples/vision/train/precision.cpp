#include "examples/vision/train/precision.h"

#include <spdlog/fmt/fmt.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/version.h>

#include <exception>
#include <limits>
#include <stdexcept>

#include "examples/vision/train/autocast.h"
#include "examples/vision/train/half_weights.h"

namespace vision {
namespace {

// LibTorch has no list of this. What models do with 16-bit inputs is tried on one small image.
bool computes_in_float16(const torch::Device& device) {
  if (device.is_cuda()) return true;
  try {
    const torch::AutoGradMode with_gradients(true);
    const auto zeros = [&](torch::IntArrayRef shape) { return torch::zeros(shape, device); };
    const torch::Tensor weight = zeros({1, 1, 3, 3}).requires_grad_();
    const torch::Tensor features =
        torch::conv2d(zeros({1, 1, 4, 4}).to(torch::kHalf), weight.to(torch::kHalf));
    const torch::Tensor normalised =
        torch::batch_norm(features, zeros({1}), zeros({1}), zeros({1}), zeros({1}),
                          /*training=*/true, /*momentum=*/0.1, /*eps=*/1e-5,
                          /*cudnn_enabled=*/false);
    torch::mm(normalised.relu().flatten(1), zeros({4, 2}).to(torch::kHalf)).sum().backward();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

OptLevel level_of(const PrecisionOptions& options) {
  return options.level.value_or(options.amp == Amp::off ? OptLevel::O0 : OptLevel::O1);
}

std::optional<LossScale> loss_scale_of(const PrecisionOptions& options) {
  if (options.loss_scale) return options.loss_scale;
  const bool by_level = options.level && *options.level != OptLevel::O0;
  return by_level || options.amp == Amp::float16 ? std::optional(LossScale{}) : std::nullopt;
}

std::string_view name_of(torch::ScalarType half) {
  return half == torch::kHalf ? "float16" : "bfloat16";
}

}  // namespace

Precision::Precision(const torch::Device& device, const PrecisionOptions& options)
    : device_(device),
      level_(level_of(options)),
      half_(options.amp == Amp::bfloat16 ? torch::kBFloat16 : torch::kHalf),
      replaces_float16_(false),
      loss_scale_(loss_scale_of(options)) {
  if (level_ == OptLevel::O0) {
    if (options.amp == Amp::off) return;
    throw std::runtime_error(
        "--opt-level O0 computes in float32, and --amp asks for 16 bits; leave one of them out");
  }
  if (half_ == torch::kBFloat16 || computes_in_float16(device)) return;
  if (options.amp == Amp::float16) {
    throw std::runtime_error(fmt::format(
        "--amp fp16 needs --device cuda: LibTorch {} has no float16 convolutions on {}; on the "
        "CPU, use --amp bf16",
        TORCH_VERSION, device.str()));
  }
  half_ = torch::kBFloat16;
  replaces_float16_ = true;
}

torch::Tensor Precision::logits(Classifier& model, const torch::Tensor& images) const {
  if (level_ == OptLevel::O0) return model.forward(images);
  if (level_ == OptLevel::O1) {
    const Autocast autocast(device_, half_);
    return model.forward(images).to(torch::kFloat32);
  }
  const HalfWeights half(model, half_);
  return model.forward(images.to(half_)).to(torch::kFloat32);
}

hora::GradScalerOptions Precision::scaler() const {
  if (!loss_scale_) return {.enabled = false};
  if (!loss_scale_->fixed) return {};
  return {.initial_scale = *loss_scale_->fixed, .growth_factor = 1.0, .backoff_factor = 1.0};
}

std::string Precision::describe() const {
  std::string text =
      level_ == OptLevel::O0 ? "float32"
      : level_ == OptLevel::O1
          ? fmt::format("O1: {} (autocast)", name_of(half_))
          : fmt::format("O2: {} model, BatchNorm and master weights float32", name_of(half_));
  if (loss_scale_) {
    text += loss_scale_->fixed ? fmt::format(", loss scale {}", *loss_scale_->fixed)
                               : ", dynamic loss scale";
  }
  if (replaces_float16_) {
    text += fmt::format(" (LibTorch {} has no float16 convolutions on {})", TORCH_VERSION,
                        device_.str());
  }
  return text;
}

std::string Precision::describe_skipped(std::size_t step, double new_scale) const {
  const bool fixed = loss_scale_ && loss_scale_->fixed;
  return fmt::format("gradient overflow: step {} skipped, loss scale {} {}", step,
                     fixed ? "stays" : "is now", new_scale);
}

}  // namespace vision
