#include "examples/vision/train/model.h"

#include <hora/torch.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace vision {
namespace {

// The default, 0.1, keeps a third of the old running statistics after 11 steps. With 3 / steps an
// epoch, however short, leaves a twentieth.
void set_momentum(torch::nn::Module& model, std::size_t steps_an_epoch) {
  const double momentum = std::clamp(3.0 / static_cast<double>(steps_an_epoch), 0.1, 1.0);
  for (const auto& module : model.modules()) {
    if (auto* norm = module->as<torch::nn::BatchNorm2d>()) norm->options.momentum(momentum);
    if (auto* norm = module->as<hora::SyncBatchNorm>()) norm->options.momentum(momentum);
  }
}

}  // namespace

std::shared_ptr<Classifier> make_classifier(const hora::Context& world,
                                            const TrainingOptions& options,
                                            const torch::Device& device, std::size_t classes,
                                            std::size_t steps_an_epoch) {
  torch::manual_seed(options.seed);
  ModelOptions shape{.classes = static_cast<std::int64_t>(classes),
                     .stem = options.network.stem,
                     .base_width = options.network.width,
                     .zero_init_residual = options.network.zero_init_residual,
                     .channels_last = options.network.channels_last};
  if (options.distribution.sync_batch_norm) {
    shape.batch_norm = [&world](std::int64_t channels) {
      return torch::nn::AnyModule(
          hora::SyncBatchNorm(world, torch::nn::BatchNormOptions(channels)));
    };
  }
  std::shared_ptr<Classifier> model = make_model(options.network.architecture, shape);
  if (const std::string& path = options.network.weights; !path.empty() && world.rank() == 0) {
    hora::load_weights(*model, hora::load_safetensors(path));
  }
  set_momentum(*model, steps_an_epoch);
  model->to(device);
  return model;
}

std::string describe(const Classifier& model) {
  std::int64_t values = 0;
  for (const auto& parameter : model.parameters()) {
    values += parameter.numel();
  }
  const std::optional<Stem>& stem = model.options().stem;
  const std::int64_t width = model.options().base_width;
  return fmt::format("{}{}{}, {} values", model.architecture().name,
                     width > 0 ? fmt::format(" of width {}", width) : "",
                     !stem                  ? ""
                     : *stem == Stem::cifar ? " with the CIFAR stem"
                                            : " with torchvision's stem",
                     values);
}

}  // namespace vision
