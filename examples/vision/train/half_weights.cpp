#include "examples/vision/train/half_weights.h"

#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace vision {

HalfWeights::Member::Member(torch::Tensor& member, torch::ScalarType half)
    : member_(member), master_(member) {
  member_ = master_.to(half);
}

HalfWeights::Member::~Member() {
  member_ = master_;
}

HalfWeights::HalfWeights(torch::nn::Module& module, torch::ScalarType half) {
  for (const auto& layer : module.modules()) {
    if (auto* const convolution = layer->as<torch::nn::Conv2d>()) {
      replace(convolution->weight, half);
      replace(convolution->bias, half);
    } else if (auto* const linear = layer->as<torch::nn::Linear>()) {
      replace(linear->weight, half);
      replace(linear->bias, half);
    }
  }
}

void HalfWeights::replace(torch::Tensor& member, torch::ScalarType half) {
  if (member.defined() && member.scalar_type() == torch::kFloat32) {
    members_.emplace_back(member, half);
  }
}

}  // namespace vision
