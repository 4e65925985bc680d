#include "bench/training_step/network.h"

#include <torch/torch.h>

#include <stdexcept>
#include <utility>

#include "examples/vision/models/model.h"

namespace bench {
namespace {

Network classifier(const char* architecture, const vision::ModelOptions& options,
                   std::int64_t pixels, std::int64_t batch) {
  const auto model = vision::make_model(architecture, options);
  const auto images = torch::randn({batch, 3, pixels, pixels});
  const auto labels = torch::randint(options.classes, {batch}, torch::kLong);
  return {model, [model = model.get(), images, labels] {
            return torch::cross_entropy_loss(model->forward(images), labels);
          }};
}

/// One weight of 3600 x 3600 float32: 51.8 MB, and no bias.
Network one_layer(std::int64_t batch) {
  constexpr std::int64_t width = 3600;
  const auto layer =
      std::make_shared<torch::nn::LinearImpl>(torch::nn::LinearOptions(width, width).bias(false));
  const auto input = torch::randn({batch, width});
  const auto labels = torch::randint(width, {batch}, torch::kLong);
  return {layer, [layer = layer.get(), input, labels] {
            return torch::cross_entropy_loss(layer->forward(input), labels);
          }};
}

/// 500 layers of 16 x 16 with a residual each, so that gradients neither vanish nor grow: 1000
/// tensors, the larger 1 KiB.
class TinyLayers final : public torch::nn::Module {
 public:
  TinyLayers() {
    for (int i = 0; i < layers; ++i) {
      layers_.push_back(register_module("layer" + std::to_string(i),
                                        torch::nn::Linear(torch::nn::LinearOptions(width, width))));
    }
  }
  torch::Tensor forward(torch::Tensor values) {
    for (auto& layer : layers_) values = values + torch::tanh(layer->forward(values)) / layers;
    return values;
  }

  static constexpr std::int64_t width = 16;

 private:
  static constexpr int layers = 500;
  std::vector<torch::nn::Linear> layers_;
};

Network tiny_layers(std::int64_t batch) {
  const auto model = std::make_shared<TinyLayers>();
  const auto input = torch::randn({batch, TinyLayers::width});
  const auto labels = torch::randint(TinyLayers::width, {batch}, torch::kLong);
  return {model, [model = model.get(), input, labels] {
            return torch::cross_entropy_loss(model->forward(input), labels);
          }};
}

}  // namespace

const std::vector<NetworkKind>& network_kinds() {
  static const std::vector<NetworkKind> kinds{
      {"resnet18", "torchvision's ResNet-18 (7x7 convolution and max-pool first), 32x32 images", 32,
       [](std::int64_t batch) {
         return classifier("resnet18", {.classes = 10, .stem = vision::Stem::imagenet}, 32, batch);
       }},
      {"resnet18_cifar", "ResNet-18 with a 3x3 convolution first, 32x32 images", 32,
       [](std::int64_t batch) {
         return classifier("resnet18", {.classes = 10, .stem = vision::Stem::cifar}, 32, batch);
       }},
      {"resnet50", "torchvision's ResNet-50, 224x224 images", 4,
       [](std::int64_t batch) { return classifier("resnet50", {}, 224, batch); }},
      {"one_layer", "one weight of 52 MB", 32, one_layer},
      {"tiny_layers", "500 layers of 16x16", 32, tiny_layers},
  };
  return kinds;
}

const NetworkKind& network_kind(const std::string& name) {
  for (const NetworkKind& kind : network_kinds()) {
    if (kind.name == name) return kind;
  }
  throw std::invalid_argument("no network is called " + name);
}

Network make_network(const std::string& name, std::int64_t batch, std::uint64_t seed) {
  const NetworkKind& kind = network_kind(name);
  torch::manual_seed(seed);
  return kind.make(batch > 0 ? batch : kind.batch);
}

}  // namespace bench
