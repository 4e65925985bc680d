#include "examples/vision/train/precision.h"

#include <spdlog/fmt/fmt.h>
#include <torch/nn/functional/batchnorm.h>
#include <torch/version.h>

#include <exception>
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

torch::ScalarType half_of(const torch::Device& device, Amp amp) {
  if (amp == Amp::bfloat16) return torch::kBFloat16;
  if (computes_in_float16(device)) return torch::kHalf;
  if (amp == Amp::off) return torch::kBFloat16;
  throw std::runtime_error(fmt::format(
      "--amp fp16 needs --device cuda: LibTorch {} has no float16 convolutions on {}; on the CPU, "
      "use --amp bf16",
      TORCH_VERSION, device.str()));
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
    const Autocast autocast(device_, half_);
    return model.forward(images).to(torch::kFloat32);
  }
  const HalfWeights half(model, half_);
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
    text += fmt::format("; LibTorch {} has no float16 convolutions on {}", TORCH_VERSION,
                        device_.str());
  }
  return text;
}

std::string Precision::describe_overflow(double new_scale) const {
  return fmt::format("gradient overflow; loss scale {} {:g}",
                     options_.loss_scale ? "stays" : "is now", new_scale);
}

}  // namespace vision
