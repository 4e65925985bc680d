#include "examples/vision/optim/weight_average.h"

#include <torch/utils.h>

#include <algorithm>
#include <stdexcept>

namespace vision {
namespace {

torch::OrderedDict<std::string, torch::Tensor> tensors_of(const torch::nn::Module& module) {
  torch::OrderedDict<std::string, torch::Tensor> all = module.named_parameters();
  for (const auto& buffer : module.named_buffers()) all.insert(buffer.key(), buffer.value());
  return all;
}

/// The module's tensors, which are those that are averaged.
torch::OrderedDict<std::string, torch::Tensor> matching(
    const torch::nn::Module& module,
    const torch::OrderedDict<std::string, torch::Tensor>& averages) {
  auto tensors = tensors_of(module);
  const bool match =
      std::equal(tensors.begin(), tensors.end(), averages.begin(), averages.end(),
                 [](const auto& a, const auto& b) {
                   return a.key() == b.key() && a.value().sizes() == b.value().sizes();
                 });
  if (!match) {
    throw std::invalid_argument(
        "WeightAverage: the module's parameters and buffers are others than those of the module "
        "that it was made for; make a new one");
  }
  return tensors;
}

}  // namespace

WeightAverage::WeightAverage(const torch::nn::Module& module, double decay) : decay_(decay) {
  if (!(decay >= 0 && decay < 1)) {
    throw std::invalid_argument("WeightAverage: decay is " + std::to_string(decay) +
                                "; expected 0 to below 1");
  }
  for (const auto& tensor : tensors_of(module)) {
    averages_.insert(tensor.key(), tensor.value().detach().clone());
  }
}

void WeightAverage::update(const torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  const auto tensors = matching(module, averages_);
  ++steps_;
  const auto steps = static_cast<double>(steps_);
  const double decay = std::min(decay_, (1 + steps) / (10 + steps));
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const torch::Tensor& weight = tensors[i].value();
    torch::Tensor& average = averages_[i].value();
    if (average.is_floating_point()) {
      average.lerp_(weight, 1 - decay);
    } else {
      average.copy_(weight);
    }
  }
}

WeightAverage::Applied::Applied(const WeightAverage& average, const torch::nn::Module& module)
    : tensors_(matching(module, average.averages_)) {
  const torch::NoGradGuard no_grad;
  for (const auto& tensor : tensors_) weights_.push_back(tensor.value().clone());
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    tensors_[i].value().copy_(average.averages_[i].value());
  }
}

WeightAverage::Applied::~Applied() {
  const torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].value().copy_(weights_[i]);
}

}  // namespace vision
