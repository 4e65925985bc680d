// hora::optim's optimizers on a GPU against themselves on the CPU.
#include <gtest/gtest.h>
#include <hora/torch/optim.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/gpu/require_gpu.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

class GpuOptim : public GpuTest {};

using Tensors = std::vector<torch::Tensor>;

/// The parameters, on the CPU, after five steps on `device` with the same gradients everywhere.
template <class Optimizer, class Options>
Tensors stepped(const Options& options, const torch::Device& device,
                torch::ScalarType type = torch::kDouble) {
  torch::manual_seed(static_cast<std::int64_t>(seed()));
  Tensors parameters, values;
  const std::vector<std::vector<std::int64_t>> shapes = {{1},          {3},       {37}, {4099},
                                                         {8, 3, 5, 5}, {64, 129}, {0}};
  for (const auto& sizes : shapes) {
    values.push_back(torch::randn(sizes, torch::kDouble));
  }
  values[4] = values[4].contiguous(torch::MemoryFormat::ChannelsLast);
  for (const auto& value : values) {
    parameters.push_back(value.to(device, type).set_requires_grad(true));
  }
  Optimizer optimizer(
      {torch::optim::OptimizerParamGroup({parameters.begin(), parameters.begin() + 3},
                                         std::make_unique<Options>(options)),
       torch::optim::OptimizerParamGroup({parameters.begin() + 3, parameters.end()},
                                         std::make_unique<Options>(options))},
      options);
  optimizer.param_groups()[1].options().set_lr(0.02);
  for (int step = 0; step < 5; ++step) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      // The first one has no gradient in the first step: its bias correction is one behind.
      const auto gradient = torch::randn_like(values[i]).to(device, type);
      parameters[i].mutable_grad() = step == 0 && i == 0 ? torch::Tensor() : gradient;
    }
    optimizer.step();
  }
  Tensors result;
  for (const auto& parameter : parameters) result.push_back(parameter.detach().cpu());
  return result;
}

template <class Optimizer, class Options>
void expect_as_on_the_cpu(const Options& options) {
  const auto expected = stepped<Optimizer>(options, torch::kCPU);
  const auto on_gpu = stepped<Optimizer>(options, torch::Device(torch::kCUDA, 0));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(on_gpu[i], expected[i], 1e-12, 1e-14)) << i;
  }
}

TEST_F(GpuOptim, SgdStepsAsOnTheCpu) {
  expect_as_on_the_cpu<optim::SGD>(torch::optim::SGDOptions(0.1));
  expect_as_on_the_cpu<optim::SGD>(
      torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.1).weight_decay(0.01));
  expect_as_on_the_cpu<optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
}

TEST_F(GpuOptim, AdamAndAdamWStepAsOnTheCpu) {
  expect_as_on_the_cpu<optim::Adam>(torch::optim::AdamOptions(0.01).weight_decay(0.01));
  expect_as_on_the_cpu<optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true));
  expect_as_on_the_cpu<optim::AdamW>(torch::optim::AdamWOptions(0.01).weight_decay(0.1));
}

TEST_F(GpuOptim, StepsAsLibTorchsWithinSomeUnitsInTheLastPlace) {
  const torch::Device device(torch::kCUDA, 0);
  const auto options = torch::optim::AdamOptions(0.01);
  const auto expected = stepped<torch::optim::Adam>(options, device, torch::kFloat);
  const auto ours = stepped<optim::Adam>(options, device, torch::kFloat);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::allclose(ours[i], expected[i], 2e-6, 1e-7)) << i;
  }
}

TEST_F(GpuOptim, OtherTypesAreLeftToLibTorch) {
  const torch::Device device(torch::kCUDA, 0);
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  const auto expected = stepped<torch::optim::SGD>(options, device, torch::kBFloat16);
  const auto ours = stepped<optim::SGD>(options, device, torch::kBFloat16);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(torch::equal(ours[i], expected[i])) << i;
  }
}

}  // namespace
}  // namespace hora::internal::test
