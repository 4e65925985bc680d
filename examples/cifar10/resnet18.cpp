#include "examples/cifar10/resnet18.h"

namespace cifar10 {
namespace {

namespace nn = torch::nn;

nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t kernel,
                       std::int64_t stride) {
  return nn::Conv2d(
      nn::Conv2dOptions(in, out, kernel).stride(stride).padding(kernel / 2).bias(false));
}

nn::Sequential stage(std::int64_t in, std::int64_t out, std::int64_t stride) {
  return nn::Sequential(BasicBlock(in, out, stride), BasicBlock(out, out, 1));
}

}  // namespace

BasicBlockImpl::BasicBlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
    : conv1(convolution(in, out, 3, stride)),
      conv2(convolution(out, out, 3, 1)),
      bn1(out),
      bn2(out) {
  register_module("conv1", conv1);
  register_module("bn1", bn1);
  register_module("conv2", conv2);
  register_module("bn2", bn2);
  if (stride != 1 || in != out) {
    downsample = nn::Sequential(convolution(in, out, 1, stride), nn::BatchNorm2d(out));
    register_module("downsample", downsample);
  }
}

torch::Tensor BasicBlockImpl::forward(const torch::Tensor& input) {
  torch::Tensor output = bn1(conv1(input)).relu_();
  output = bn2(conv2(output));
  output += downsample.is_empty() ? input : downsample->forward(input);
  return output.relu_();
}

ResNet18Impl::ResNet18Impl(std::int64_t classes, Stem stem)
    : conv1(stem == Stem::cifar ? convolution(3, 64, 3, 1) : convolution(3, 64, 7, 2)),
      bn1(64),
      layer1(stage(64, 64, 1)),
      layer2(stage(64, 128, 2)),
      layer3(stage(128, 256, 2)),
      layer4(stage(256, 512, 2)),
      fc(512, classes) {
  register_module("conv1", conv1);
  register_module("bn1", bn1);
  if (stem == Stem::imagenet) {
    maxpool = nn::MaxPool2d(nn::MaxPool2dOptions(3).stride(2).padding(1));
    register_module("maxpool", maxpool);
  }
  register_module("layer1", layer1);
  register_module("layer2", layer2);
  register_module("layer3", layer3);
  register_module("layer4", layer4);
  register_module("fc", fc);
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* conv = module->as<nn::Conv2d>()) {
      nn::init::kaiming_normal_(conv->weight, 0.0, torch::kFanOut, torch::kReLU);
    }
  }
}

torch::Tensor ResNet18Impl::forward(const torch::Tensor& images) {
  torch::Tensor features = bn1(conv1(images)).relu_();
  if (!maxpool.is_empty()) {
    features = maxpool(features);
  }
  features = layer1->forward(features);
  features = layer2->forward(features);
  features = layer3->forward(features);
  features = layer4->forward(features);
  return fc(features.mean({2, 3}));
}

}  // namespace cifar10
