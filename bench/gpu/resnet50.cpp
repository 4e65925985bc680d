#include "bench/gpu/resnet50.h"

namespace bench {
namespace {

constexpr std::int64_t kExpansion = 4;

torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                              std::int64_t stride = 1) {
  return torch::nn::Conv2d(
      torch::nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

torch::nn::Sequential layer(std::int64_t blocks, std::int64_t in, std::int64_t width,
                            std::int64_t stride) {
  torch::nn::Sequential result(Bottleneck(in, width, stride));
  for (std::int64_t i = 1; i < blocks; ++i) {
    result->push_back(Bottleneck(width * kExpansion, width, 1));
  }
  return result;
}

}  // namespace

BottleneckImpl::BottleneckImpl(std::int64_t in, std::int64_t width, std::int64_t stride)
    : conv1(register_module("conv1", convolution(in, width, 1))),
      conv2(register_module("conv2", convolution(width, width, 3, stride))),
      conv3(register_module("conv3", convolution(width, width * kExpansion, 1))),
      bn1(register_module("bn1", torch::nn::BatchNorm2d(width))),
      bn2(register_module("bn2", torch::nn::BatchNorm2d(width))),
      bn3(register_module("bn3", torch::nn::BatchNorm2d(width * kExpansion))) {
  if (stride != 1 || in != width * kExpansion) {
    downsample = register_module(
        "downsample", torch::nn::Sequential(convolution(in, width * kExpansion, 1, stride),
                                            torch::nn::BatchNorm2d(width * kExpansion)));
  }
}

torch::Tensor BottleneckImpl::forward(const torch::Tensor& input) {
  auto output = torch::relu(bn1(conv1(input)));
  output = torch::relu(bn2(conv2(output)));
  output = bn3(conv3(output));
  return torch::relu(output + (downsample ? downsample->forward(input) : input));
}

ResNet50Impl::ResNet50Impl(std::int64_t classes)
    : conv1(register_module(
          "conv1",
          torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 7).stride(2).padding(3).bias(false)))),
      bn1(register_module("bn1", torch::nn::BatchNorm2d(64))),
      layer1(register_module("layer1", layer(3, 64, 64, 1))),
      layer2(register_module("layer2", layer(4, 256, 128, 2))),
      layer3(register_module("layer3", layer(6, 512, 256, 2))),
      layer4(register_module("layer4", layer(3, 1024, 512, 2))),
      fc(register_module("fc", torch::nn::Linear(2048, classes))) {}

torch::Tensor ResNet50Impl::forward(const torch::Tensor& images) {
  auto output = torch::relu(bn1(conv1(images)));
  output = torch::max_pool2d(output, 3, 2, 1);
  output = layer4->forward(layer3->forward(layer2->forward(layer1->forward(output))));
  return fc(torch::adaptive_avg_pool2d(output, {1, 1}).flatten(1));
}

}  // namespace bench
