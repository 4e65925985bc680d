#include "examples/vision/train/model.h"

#include <hora/torch.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>

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

// Gives the weights of another number of classes the model's own last layer, and says so.
void keep_last_layer(const Classifier& model, const std::string& path,
                     torch::OrderedDict<std::string, torch::Tensor>& weights) {
  const auto own = model.named_parameters().pairs();
  for (auto last = own.end() - 2; last != own.end(); ++last) {
    torch::Tensor* const given = weights.find(last->first);
    if (given == nullptr || given->dim() != last->second.dim() ||
        given->size(0) == last->second.size(0)) {
      return;
    }
    if (last + 1 == own.end()) {
      std::cout << fmt::format(
                       "weights: {}, but for the last layer, which begins anew: {} classes "
                       "there, {} here\n",
                       path, given->size(0), last->second.size(0))
                << std::flush;
    }
    *given = last->second;
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
    auto weights = hora::load_safetensors(path);
    if (!options.validation.only) keep_last_layer(*model, path, weights);
    hora::load_weights(*model, weights);
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
