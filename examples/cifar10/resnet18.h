/// ResNet-18 (He, Zhang, Ren, Sun: Deep residual learning for image recognition, CVPR 2016), with
/// torchvision's names of parameters and buffers.
#pragma once

#include <torch/nn.h>

#include <cstdint>

#include "examples/cifar10/stem.h"

namespace cifar10 {

/// Two 3x3 convolutions and what goes around them; "BasicBlock" in torchvision.
struct BasicBlockImpl : torch::nn::Module {
  BasicBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride);
  torch::Tensor forward(const torch::Tensor& input);

  torch::nn::Conv2d conv1, conv2;
  torch::nn::BatchNorm2d bn1, bn2;
  torch::nn::Sequential downsample{nullptr};  ///< empty where input and output have one shape
};
TORCH_MODULE(BasicBlock);

/// 62 parameter tensors; with the CIFAR stem and ten classes 11,173,962 values.
struct ResNet18Impl : torch::nn::Module {
  /// Weights as torchvision draws them, from LibTorch's generator.
  explicit ResNet18Impl(std::int64_t classes, Stem stem);
  /// Images [N, 3, H, W] to logits [N, classes].
  torch::Tensor forward(const torch::Tensor& images);

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::MaxPool2d maxpool{nullptr};  ///< empty with the CIFAR stem
  torch::nn::Sequential layer1, layer2, layer3, layer4;
  torch::nn::Linear fc;
};
TORCH_MODULE(ResNet18);

}  // namespace cifar10
