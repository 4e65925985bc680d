/// ResNet-50 (He, Zhang, Ren, Sun: Deep residual learning for image recognition, CVPR 2016), with
/// the stride in the 3x3 convolution as torchvision has it.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace bench {

/// 1x1, 3x3 and 1x1 convolution, which gives out four times `width` channels.
struct BottleneckImpl : torch::nn::Module {
  BottleneckImpl(std::int64_t in, std::int64_t width, std::int64_t stride);
  torch::Tensor forward(const torch::Tensor& input);

  torch::nn::Conv2d conv1, conv2, conv3;
  torch::nn::BatchNorm2d bn1, bn2, bn3;
  torch::nn::Sequential downsample{nullptr};  ///< empty where input and output have one shape
};
TORCH_MODULE(Bottleneck);

/// 161 parameters, 25,557,032 values.
struct ResNet50Impl : torch::nn::Module {
  explicit ResNet50Impl(std::int64_t classes = 1000);
  /// Images [N, 3, H, W] to logits [N, classes].
  torch::Tensor forward(const torch::Tensor& images);

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Sequential layer1, layer2, layer3, layer4;
  torch::nn::Linear fc;
};
TORCH_MODULE(ResNet50);

}  // namespace bench
