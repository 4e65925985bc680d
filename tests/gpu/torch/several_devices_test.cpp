// A model on this rank's GPU and on another device: another GPU where there is one, and the CPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <string>
#include <vector>

#include "tests/frameworks/torch/network.h"
#include "tests/gpu/require_gpu.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

class GpuSeveralDevices : public GpuTest {};

/// The parameters, on the CPU, after ten steps of a model that has its second layer on `second`.
std::vector<torch::Tensor> train_split(const Context& world, const torch::Device& first,
                                       const torch::Device& second,
                                       const DistributedOptimizerOptions& options) {
  torch::manual_seed(seed());
  torch::OrderedDict<std::string, torch::Tensor> parameters;
  const auto add = [&](const char* name, at::IntArrayRef sizes, const torch::Device& where) {
    parameters.insert(name, (torch::randn(sizes, torch::kDouble) * 0.1).to(where).requires_grad_());
  };
  add("first", {300, 108}, first);
  add("second", {90, 300}, second);
  add("third", {5, 90}, first);
  torch::optim::SGD sgd(parameters.values(), torch::optim::SGDOptions(0.05).momentum(0.9));
  DistributedOptimizer optimizer(world, sgd, parameters, options);
  for (int step = 0; step < 10; ++step) {
    const Batch batch = part_of(
        whole_batch(seed() + static_cast<std::uint64_t>(step), 4 * world.size(), torch::kDouble),
        world.rank(), 4);
    optimizer.zero_grad();
    auto values = torch::linear(batch.images.flatten(1).to(first), parameters["first"]);
    values = torch::linear(torch::tanh(values).to(second), parameters["second"]);
    values = torch::linear(torch::tanh(values).to(first), parameters["third"]);
    torch::cross_entropy_loss(values, batch.labels.to(first)).backward();
    EXPECT_EQ(parameters["second"].grad().device(), second);
    optimizer.clip_grad_norm_(1.0);
    optimizer.step();
  }
  std::vector<torch::Tensor> trained;
  for (const auto& item : parameters) {
    trained.push_back(item.value().detach().cpu());
    EXPECT_TRUE(equals_root(world, trained.back())) << item.key();
  }
  return trained;
}

/// Beside `own`.
std::vector<torch::Device> other_devices_of(const torch::Device& own) {
  std::vector<torch::Device> devices{torch::kCPU};
  int count = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  const int next = (own.index() + 1) % count;
  if (next != own.index()) {
    devices.emplace_back(torch::kCUDA, static_cast<c10::DeviceIndex>(next));
  }
  return devices;
}

TEST_F(GpuSeveralDevices, TrainAsOnTheCpu) {
  const Context world = init();
  const auto own = local_device(world);
  for (const DistributedOptimizerOptions& options :
       {DistributedOptimizerOptions{}, DistributedOptimizerOptions{.bucket_bytes = 64}}) {
    const auto expected = train_split(world, torch::kCPU, torch::kCPU, options);
    for (const torch::Device& second : other_devices_of(own)) {
      const auto trained = train_split(world, own, second, options);
      for (std::size_t i = 0; i < trained.size(); ++i) {
        EXPECT_TRUE(torch::allclose(trained[i], expected[i], 0.0, 1e-11)) << second << ' ' << i;
      }
    }
  }
}

}  // namespace
}  // namespace hora::internal::test
