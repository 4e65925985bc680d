/// AlexNet and VGG: convolutions and poolings one after the other (`features`), then three linear
/// layers (`classifier`).
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include "examples/vision/models/families.h"

namespace vision {
namespace {

namespace nn = torch::nn;

// Of both: the channels of the first convolution, of which all other widths are multiples.
constexpr std::int64_t own_width = 64;

// Width and height of the features that the classifier takes.
constexpr std::int64_t alexnet_side = 6;
constexpr std::int64_t vgg_side = 7;

/// `channels` at the base width that the options choose.
std::int64_t scaled(std::int64_t channels, const ModelOptions& options) {
  return options.base_width > 0 ? channels / own_width * options.base_width : channels;
}

nn::ReLU relu() {
  return nn::ReLU(nn::ReLUOptions(/*inplace=*/true));
}

nn::Dropout dropout(const ModelOptions& options) {
  return nn::Dropout(nn::DropoutOptions(options.dropout.value_or(0.5)));
}

nn::MaxPool2d pooling(std::int64_t kernel) {
  return nn::MaxPool2d(nn::MaxPool2dOptions(kernel).stride(2));
}

class PlainNetwork : public Classifier {
 protected:
  PlainNetwork(const Architecture& architecture, const ModelOptions& options,
               const nn::Sequential& features, std::int64_t side, const nn::Sequential& classifier)
      : Classifier(architecture, options),
        features_(register_module("features", features)),
        avgpool_(register_module("avgpool", nn::AdaptiveAvgPool2d(side))),
        classifier_(register_module("classifier", classifier)) {}

 private:
  torch::Tensor logits(const torch::Tensor& images) override {
    return classifier_->forward(avgpool_(features_->forward(images)).flatten(1));
  }

  nn::Sequential features_;
  nn::AdaptiveAvgPool2d avgpool_;
  nn::Sequential classifier_;
};

class AlexNet : public PlainNetwork {
 public:
  AlexNet(const Architecture& architecture, const ModelOptions& options,
          const nn::Sequential& features, const nn::Sequential& classifier)
      : PlainNetwork(architecture, options, features, alexnet_side, classifier) {}

 private:
  void draw_weights() override {}  // torchvision leaves it as the layers draw themselves
};

class Vgg : public PlainNetwork {
 public:
  Vgg(const Architecture& architecture, const ModelOptions& options, const nn::Sequential& features,
      const nn::Sequential& classifier)
      : PlainNetwork(architecture, options, features, vgg_side, classifier) {}

 private:
  void draw_weights() override {
    draw_convolutions(*this);
    for (const auto& module : modules(/*include_self=*/false)) {
      if (auto* const convolution = module->as<nn::Conv2d>()) {
        convolution->bias.zero_();
      } else if (auto* const linear = module->as<nn::Linear>()) {
        nn::init::normal_(linear->weight, 0, 0.01);
        linear->bias.zero_();
      }
    }
  }
};

}  // namespace

std::shared_ptr<Classifier> make_alexnet(const Architecture& architecture,
                                         const ModelOptions& options) {
  const auto convolution = [&](std::int64_t in, std::int64_t out, std::int64_t kernel,
                               std::int64_t stride, std::int64_t padding) {
    return nn::Conv2d(
        nn::Conv2dOptions(in == 3 ? 3 : scaled(in, options), scaled(out, options), kernel)
            .stride(stride)
            .padding(padding));
  };
  // One after the other: the order in which arguments are made is the compiler's.
  nn::Sequential features;
  features->push_back(convolution(3, 64, 11, 4, 2));
  features->push_back(relu());
  features->push_back(pooling(3));
  features->push_back(convolution(64, 192, 5, 1, 2));
  features->push_back(relu());
  features->push_back(pooling(3));
  features->push_back(convolution(192, 384, 3, 1, 1));
  features->push_back(relu());
  features->push_back(convolution(384, 256, 3, 1, 1));
  features->push_back(relu());
  features->push_back(convolution(256, 256, 3, 1, 1));
  features->push_back(relu());
  features->push_back(pooling(3));

  const std::int64_t hidden = scaled(4096, options);
  nn::Sequential classifier;
  classifier->push_back(dropout(options));
  classifier->push_back(nn::Linear(scaled(256, options) * alexnet_side * alexnet_side, hidden));
  classifier->push_back(relu());
  classifier->push_back(dropout(options));
  classifier->push_back(nn::Linear(hidden, hidden));
  classifier->push_back(relu());
  classifier->push_back(nn::Linear(hidden, options.classes));
  return std::make_shared<AlexNet>(architecture, options, features, classifier);
}

std::shared_ptr<Classifier> make_vgg(const Architecture& architecture,
                                     const ModelOptions& options) {
  const auto& shape = std::get<VggShape>(architecture.shape);
  nn::Sequential features;
  std::int64_t in = 3;
  std::int64_t width = 64;
  for (const int convolutions : shape.convolutions) {
    const std::int64_t out = scaled(width, options);
    for (int i = 0; i < convolutions; ++i) {
      features->push_back(nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1)));
      if (shape.batch_norm) {
        features->push_back(make_batch_norm(options, out));
      }
      features->push_back(relu());
      in = out;
    }
    features->push_back(pooling(2));
    width = width < 512 ? 2 * width : width;
  }

  const std::int64_t hidden = scaled(4096, options);
  nn::Sequential classifier;
  classifier->push_back(nn::Linear(in * vgg_side * vgg_side, hidden));
  classifier->push_back(relu());
  classifier->push_back(dropout(options));
  classifier->push_back(nn::Linear(hidden, hidden));
  classifier->push_back(relu());
  classifier->push_back(dropout(options));
  classifier->push_back(nn::Linear(hidden, options.classes));
  return std::make_shared<Vgg>(architecture, options, features, classifier);
}

}  // namespace vision
