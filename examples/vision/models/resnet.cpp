/// He, Zhang, Ren, Sun: Deep residual learning for image recognition (2015). As in torchvision, a
/// bottleneck block has its stride in the 3x3 convolution.
#include <torch/nn/functional/padding.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <string>
#include <vector>

#include "examples/vision/models/families.h"

namespace vision {
namespace {

namespace nn = torch::nn;

nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                       std::int64_t stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

/// What the blocks of one network have in common.
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
    if (!projection_.is_empty()) {
      register_module("downsample", projection_);
    }
  }

  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor output = input;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      output = layers_[i].norm.forward(layers_[i].convolution(output));
      if (i + 1 < layers_.size()) {
        output.relu_();
      }
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
    if (!projection_.is_empty()) {
      return projection_->forward(input);
    }
    if (!changes_shape()) {
      return input;
    }
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
    if (!maxpool_.is_empty()) {
      features = maxpool_(features);
    }
    for (nn::Sequential& stage : stages_) {
      features = stage->forward(features);
    }
    return fc_(features.mean({2, 3}));
  }

  void draw_weights() override {
    draw_convolutions(*this);
    if (options().zero_init_residual) {
      for (const auto& module : modules(/*include_self=*/false)) {
        if (auto* const block = module->as<ResidualBlock>()) {
          block->zero_last_norm();
        }
      }
    }
  }

  nn::Conv2d conv1_{nullptr};
  nn::AnyModule bn1_;
  nn::MaxPool2d maxpool_{nullptr};  // empty with the CIFAR stem
  std::vector<nn::Sequential> stages_;
  nn::Linear fc_{nullptr};
};

}  // namespace

std::shared_ptr<Classifier> make_resnet(const Architecture& architecture,
                                        const ModelOptions& options) {
  return std::make_shared<ResNet>(architecture, std::get<ResNetShape>(architecture.shape), options);
}

}  // namespace vision
