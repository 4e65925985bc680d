#include "examples/vision/models/model.h"

#include <torch/nn/functional/padding.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace vision {
namespace {

namespace nn = torch::nn;

void check(bool right, const Architecture& architecture, const std::string& text) {
  if (!right) throw std::invalid_argument(std::string(architecture.name) + ": " + text);
}

nn::AnyModule make_batch_norm(const ModelOptions& options, std::int64_t channels) {
  return options.batch_norm ? options.batch_norm(channels)
                            : nn::AnyModule(nn::BatchNorm2d(channels));
}

/// Draws every convolution from a normal distribution with variance 2 / fan_out (He et al.,
/// Delving deep into rectifiers, 2015, equation 14), in the order of modules().
void draw_convolutions(nn::Module& model) {
  for (const auto& module : model.modules(/*include_self=*/false)) {
    if (auto* const convolution = module->as<nn::Conv2d>()) {
      nn::init::kaiming_normal_(convolution->weight, 0.0, torch::kFanOut, torch::kReLU);
    }
  }
}

// ResNets. As in torchvision, a bottleneck block has its stride in the 3x3 convolution.

nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                       std::int64_t stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

/// Shared by the blocks of one network.
struct BlockKind {
  Block block;
  Shortcut shortcut;
  const ModelOptions& options;

  /// Channels that come out of a block of this width.
  std::int64_t out(std::int64_t width) const { return block == Block::basic ? width : 4 * width; }
};

/// "BasicBlock" and "Bottleneck" in torchvision.
class ResidualBlock : public nn::Module {
 public:
  ResidualBlock(const BlockKind& kind, std::int64_t in, std::int64_t width, std::int64_t stride)
      : stride_(stride), new_channels_(kind.out(width) - in) {
    // torchvision makes it before the other convolutions, and registers it behind them: so the
    // same seed gives the same weights.
    if (kind.shortcut == Shortcut::projection && changes_shape()) {
      projection_ = nn::Sequential(convolution(in, in + new_channels_, 1, stride));
      projection_->push_back(make_batch_norm(kind.options, in + new_channels_));
    }
    if (kind.block == Block::basic) {
      add_layer(convolution(in, width, 3, stride), kind.options);
      add_layer(convolution(width, width, 3, 1), kind.options);
    } else {
      add_layer(convolution(in, width, 1, 1), kind.options);
      add_layer(convolution(width, width, 3, stride), kind.options);
      add_layer(convolution(width, kind.out(width), 1, 1), kind.options);
    }
    if (!projection_.is_empty()) register_module("downsample", projection_);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor output = input;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      output = layers_[i].norm.forward(layers_[i].convolution(output));
      if (i + 1 < layers_.size()) output.relu_();
    }
    output += shortcut(input);
    return output.relu_();
  }

  /// Makes the block the identity, but for its ReLU.
  void zero_last_norm() { layers_.back().norm.ptr()->named_parameters()["weight"].zero_(); }

 private:
  struct Layer {
    nn::Conv2d convolution;
    nn::AnyModule norm;
  };

  bool changes_shape() const { return stride_ != 1 || new_channels_ != 0; }

  void add_layer(const nn::Conv2d& convolution, const ModelOptions& options) {
    layers_.push_back({convolution, make_batch_norm(options, convolution->options.out_channels())});
    const std::string number = std::to_string(layers_.size());
    register_module("conv" + number, convolution);
    register_module("bn" + number, layers_.back().norm.ptr());
  }

  torch::Tensor shortcut(const torch::Tensor& input) {
    if (!projection_.is_empty()) return projection_->forward(input);
    if (!changes_shape()) return input;
    const torch::Tensor places =
        input.slice(2, 0, torch::nullopt, stride_).slice(3, 0, torch::nullopt, stride_);
    return nn::functional::pad(
        places, nn::functional::PadFuncOptions({0, 0, 0, 0, 0, new_channels_}));  // W, H, channels
  }

  std::vector<Layer> layers_;
  nn::Sequential projection_{nullptr};
  std::int64_t stride_;
  std::int64_t new_channels_;  // beside those of the input
};

class ResNet : public Classifier {
 public:
  ResNet(const Architecture& architecture, const ResNetShape& shape, const ModelOptions& options)
      : Classifier(architecture, options) {
    const BlockKind kind{shape.block, shape.shortcut, options};
    std::int64_t width = options.base_width > 0 ? options.base_width : shape.width;
    add_stem(options.stem.value_or(shape.stem), width);
    std::int64_t channels = width;
    for (std::size_t i = 0; i < shape.blocks.size() && shape.blocks[i] > 0; ++i) {
      stages_.emplace_back();
      for (int block = 0; block < shape.blocks[i]; ++block) {
        const std::int64_t stride = i > 0 && block == 0 ? 2 : 1;
        stages_.back()->push_back(std::make_shared<ResidualBlock>(kind, channels, width, stride));
        channels = kind.out(width);
      }
      register_module("layer" + std::to_string(i + 1), stages_.back());
      width *= 2;
    }
    fc_ = register_module("fc", nn::Linear(channels, options.classes));
  }

 private:
  void add_stem(Stem stem, std::int64_t width) {
    conv1_ = register_module(
        "conv1", stem == Stem::cifar ? convolution(3, width, 3, 1) : convolution(3, width, 7, 2));
    bn1_ = make_batch_norm(options(), width);
    register_module("bn1", bn1_.ptr());
    if (stem == Stem::imagenet) {
      maxpool_ =
          register_module("maxpool", nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1)));
    }
  }

  torch::Tensor logits(const torch::Tensor& images) override {
    torch::Tensor features = bn1_.forward(conv1_(images));
    features.relu_();
    if (!maxpool_.is_empty()) features = maxpool_(features);
    for (nn::Sequential& stage : stages_) features = stage->forward(features);
    return fc_(features.mean({2, 3}));
  }

  void draw_weights() override {
    draw_convolutions(*this);
    if (!options().zero_init_residual) return;
    for (const auto& module : modules(/*include_self=*/false)) {
      if (auto* const block = module->as<ResidualBlock>()) block->zero_last_norm();
    }
  }

  nn::Conv2d conv1_{nullptr};
  nn::AnyModule bn1_;
  nn::MaxPool2d maxpool_{nullptr};  // empty with the CIFAR stem
  std::vector<nn::Sequential> stages_;
  nn::Linear fc_{nullptr};
};

// AlexNet and VGG: convolutions and poolings (`features`), then three linear layers.

/// `channels` at the base width that the options choose.
std::int64_t scaled(std::int64_t channels, const ModelOptions& options) {
  return options.base_width > 0 ? channels / 64 * options.base_width : channels;
}

nn::ReLU relu() {
  return nn::ReLU(nn::ReLUOptions(/*inplace=*/true));
}

nn::MaxPool2d pooling(std::int64_t kernel) {
  return nn::MaxPool2d(nn::MaxPool2dOptions(kernel).stride(2));
}

class PlainNetwork : public Classifier {
 public:
  /// `channels` and `side`, width and height, of the features that the classifier takes.
  PlainNetwork(const Architecture& architecture, const ModelOptions& options,
               const nn::Sequential& features, std::int64_t channels, std::int64_t side)
      : Classifier(architecture, options),
        features_(register_module("features", features)),
        avgpool_(register_module("avgpool", nn::AdaptiveAvgPool2d(side))) {
    const bool dropout_first = std::holds_alternative<AlexNetShape>(architecture.shape);
    const nn::DropoutOptions dropout(options.dropout.value_or(0.5));
    const std::int64_t hidden = scaled(4096, options);
    std::int64_t in = channels * side * side;
    for (int i = 0; i < 2; ++i) {
      if (dropout_first) classifier_->push_back(nn::Dropout(dropout));
      classifier_->push_back(nn::Linear(in, hidden));
      classifier_->push_back(relu());
      if (!dropout_first) classifier_->push_back(nn::Dropout(dropout));
      in = hidden;
    }
    classifier_->push_back(nn::Linear(hidden, options.classes));
    register_module("classifier", classifier_);
  }

 private:
  torch::Tensor logits(const torch::Tensor& images) override {
    return classifier_->forward(avgpool_(features_->forward(images)).flatten(1));
  }

  void draw_weights() override {
    // torchvision leaves AlexNet as the layers draw themselves.
    if (!std::holds_alternative<VggShape>(architecture().shape)) return;
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

  nn::Sequential features_;
  nn::AdaptiveAvgPool2d avgpool_;
  nn::Sequential classifier_;
};

std::shared_ptr<Classifier> make_alexnet(const Architecture& architecture,
                                         const ModelOptions& options) {
  struct Layer {
    std::int64_t in, out, kernel, stride, padding;
    bool pooled;
  };
  // One after the other: the order in which arguments are made is the compiler's.
  nn::Sequential features;
  for (const Layer& layer : {Layer{3, 64, 11, 4, 2, true}, Layer{64, 192, 5, 1, 2, true},
                             Layer{192, 384, 3, 1, 1, false}, Layer{384, 256, 3, 1, 1, false},
                             Layer{256, 256, 3, 1, 1, true}}) {
    const std::int64_t in = layer.in == 3 ? 3 : scaled(layer.in, options);
    features->push_back(nn::Conv2d(nn::Conv2dOptions(in, scaled(layer.out, options), layer.kernel)
                                       .stride(layer.stride)
                                       .padding(layer.padding)));
    features->push_back(relu());
    if (layer.pooled) features->push_back(pooling(3));
  }
  return std::make_shared<PlainNetwork>(architecture, options, features, scaled(256, options), 6);
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
      if (shape.batch_norm) features->push_back(make_batch_norm(options, out));
      features->push_back(relu());
      in = out;
    }
    features->push_back(pooling(2));
    width = width < 512 ? 2 * width : width;
  }
  return std::make_shared<PlainNetwork>(architecture, options, features, in, 7);
}

std::shared_ptr<Classifier> build(const Architecture& architecture, const ModelOptions& options) {
  if (const auto* const resnet = std::get_if<ResNetShape>(&architecture.shape)) {
    return std::make_shared<ResNet>(architecture, *resnet, options);
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

Classifier::Classifier(const Architecture& architecture, const ModelOptions& options)
    : Module(std::string(architecture.name)), architecture_(architecture), options_(options) {}

torch::Tensor Classifier::forward(const torch::Tensor& images) {
  const int least = architecture_.smallest_image;
  if (images.dim() != 4 || images.size(1) != 3 || images.size(2) < least ||
      images.size(3) < least) {
    std::ostringstream text;
    text << "images have shape " << images.sizes() << "; expected [N, 3, H, W] with H and W of "
         << least << " or more";
    check(false, architecture_, text.str());
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
  for (std::size_t i = 0; i < own.size(); ++i) copied[i]->train(own[i]->is_training());
  return copy;
}

std::shared_ptr<Classifier> make_model(std::string_view architecture, const ModelOptions& options) {
  const Architecture& found = find_architecture(architecture);
  const bool resnet = std::holds_alternative<ResNetShape>(found.shape);
  check(resnet || !options.stem, found, "a stem was chosen; only ResNets have a choice");
  check(resnet || !options.zero_init_residual, found,
        "zero_init_residual was set; only ResNets have residual blocks");
  std::shared_ptr<Classifier> model = build(found, options);
  const torch::NoGradGuard no_grad;
  model->draw_weights();
  if (!options.channels_last) return model;
  for (torch::Tensor& parameter : model->parameters()) {
    if (parameter.dim() != 4) continue;
    parameter.set_data(parameter.contiguous(torch::MemoryFormat::ChannelsLast));
  }
  return model;
}

}  // namespace vision
