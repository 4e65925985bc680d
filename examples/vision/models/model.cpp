#include "examples/vision/models/model.h"

#include <torch/nn/init.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "examples/vision/models/families.h"

namespace vision {
namespace {

[[noreturn]] void refuse(const Architecture& architecture, const std::string& text) {
  throw std::invalid_argument(std::string(architecture.name) + ": " + text);
}

void check(bool right, const Architecture& architecture, const std::string& text) {
  if (!right) {
    refuse(architecture, text);
  }
}

void check_options(const Architecture& architecture, const ModelOptions& options) {
  const bool resnet = std::holds_alternative<ResNetShape>(architecture.shape);
  check(options.classes > 0, architecture,
        std::to_string(options.classes) + " classes; expected 1 or more");
  check(options.base_width >= 0, architecture,
        "base width " + std::to_string(options.base_width) + "; expected 1 or more, or 0 for " +
            "the architecture's own");
  check(resnet || !options.stem, architecture, "a stem was chosen; only ResNets have a choice");
  check(resnet || !options.zero_init_residual, architecture,
        "zero_init_residual was set; only ResNets have residual blocks");
  check(!resnet || !options.dropout, architecture,
        "dropout was set; only AlexNet and VGG have dropout");
  check(!options.dropout || (*options.dropout >= 0 && *options.dropout < 1), architecture,
        "dropout " + std::to_string(options.dropout.value_or(0)) + "; expected 0 to below 1");
}

std::shared_ptr<Classifier> build(const Architecture& architecture, const ModelOptions& options) {
  if (std::holds_alternative<ResNetShape>(architecture.shape)) {
    return make_resnet(architecture, options);
  }
  return std::holds_alternative<AlexNetShape>(architecture.shape)
             ? make_alexnet(architecture, options)
             : make_vgg(architecture, options);
}

template <class Dictionary>
void copy_tensors(const Dictionary& from, Dictionary&& to,
                  const torch::optional<torch::Device>& device) {
  for (auto& item : to) {
    const torch::Tensor& tensor = from[item.key()];
    item.value().set_data(
        tensor.detach().to(tensor.options().device(device.value_or(tensor.device())),
                           /*non_blocking=*/false, /*copy=*/true));
    item.value().set_requires_grad(tensor.requires_grad());
  }
}

}  // namespace

torch::nn::AnyModule make_batch_norm(const ModelOptions& options, std::int64_t channels) {
  return options.batch_norm ? options.batch_norm(channels)
                            : torch::nn::AnyModule(torch::nn::BatchNorm2d(channels));
}

void draw_convolutions(torch::nn::Module& model) {
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* const convolution = module->as<torch::nn::Conv2d>()) {
      torch::nn::init::kaiming_normal_(convolution->weight, 0.0, torch::kFanOut, torch::kReLU);
    }
  }
}

Classifier::Classifier(const Architecture& architecture, const ModelOptions& options)
    : Module(std::string(architecture.name)), architecture_(architecture), options_(options) {}

torch::Tensor Classifier::forward(const torch::Tensor& images) {
  const int least = architecture_.smallest_image;
  if (images.dim() != 4 || images.size(1) != 3 || images.size(2) < least ||
      images.size(3) < least) {
    std::ostringstream text;
    text << "images have shape " << images.sizes() << "; expected [N, 3, H, W] with H and W of "
         << least << " or more";
    refuse(architecture_, text.str());
  }
  return logits(options_.channels_last ? images.contiguous(torch::MemoryFormat::ChannelsLast)
                                       : images);
}

std::shared_ptr<torch::nn::Module> Classifier::clone(
    const torch::optional<torch::Device>& device) const {
  const torch::NoGradGuard no_grad;
  const std::shared_ptr<Classifier> copy = build(architecture_, options_);
  copy_tensors(named_parameters(), copy->named_parameters(), device);
  copy_tensors(named_buffers(), copy->named_buffers(), device);
  // Parents come before children, which may have another mode.
  const auto own = modules();
  const auto copied = copy->modules();
  for (std::size_t i = 0; i < own.size(); ++i) {
    copied[i]->train(own[i]->is_training());
  }
  return copy;
}

std::shared_ptr<Classifier> make_model(std::string_view architecture, const ModelOptions& options) {
  const Architecture& found = find_architecture(architecture);
  check_options(found, options);
  std::shared_ptr<Classifier> model = build(found, options);
  const torch::NoGradGuard no_grad;
  model->draw_weights();
  if (options.channels_last) {
    for (torch::Tensor& parameter : model->parameters()) {
      if (parameter.dim() == 4) {
        parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
      }
    }
  }
  return model;
}

}  // namespace vision
