// DistributedOptimizer and GradScaler on a GPU against the same training on the CPU.
#include <c10/cuda/CUDAGuard.h>
#include <gtest/gtest.h>
#include <hora/torch/grad_scaler.h>

#include <algorithm>
#include <array>
#include <limits>

#include "tests/frameworks/torch/network.h"
#include "tests/gpu/require_gpu.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

constexpr std::int64_t kBatch = 8;  // images a rank

class GpuOptimizer : public GpuTest {};

Batch on_device(const Batch& batch, const torch::Device& device) {
  return {batch.images.to(device), batch.labels.to(device)};
}

Batch my_batch(const Context& world, const torch::Device& device, int step,
               torch::ScalarType type = torch::kFloat) {
  const Batch whole =
      whole_batch(seed() + static_cast<std::uint64_t>(step), kBatch * world.size(), type);
  return on_device(part_of(whole, world.rank(), kBatch), device);
}

/// The parameters, on the CPU, after ten steps on `device`.
std::vector<torch::Tensor> train(const Context& world, const torch::Device& device,
                                 const DistributedOptimizerOptions& options = {},
                                 torch::MemoryFormat format = torch::MemoryFormat::Contiguous) {
  auto network = small_network(seed(), torch::kDouble);
  network->to(device);
  for (auto& parameter : network->parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(format));
  }
  torch::optim::SGD sgd(network->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  DistributedOptimizer optimizer(world, sgd, network->named_parameters(), options);
  for (int step = 0; step < 10; ++step) {
    Batch batch = my_batch(world, device, step, torch::kDouble);
    batch.images = batch.images.contiguous(format);
    optimizer.zero_grad();
    loss_of(network, batch).backward();
    optimizer.step();
  }
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : network->parameters()) {
    EXPECT_TRUE(equals_root(world, parameter));
    parameters.push_back(parameter.detach().cpu().contiguous());
  }
  return parameters;
}

double largest_difference(const std::vector<torch::Tensor>& a,
                          const std::vector<torch::Tensor>& b) {
  double largest = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>());
  }
  return largest;
}

// Double precision: orders of summation differ by some 2^-52, and ten steps of this smooth network
// make less than 1e-12 of that. A rank left out or a stale gradient moves weights by over 1e-4.
constexpr double kTolerance = 1e-12;

TEST_F(GpuOptimizer, TrainsAsOnTheCpu) {
  const Context world = init();
  const auto expected = train(world, torch::kCPU);
  const auto device = local_device(world);
  EXPECT_LE(largest_difference(train(world, device), expected), kTolerance);
  EXPECT_LE(largest_difference(train(world, device, {.bucket_bytes = 64}), expected), kTolerance)
      << "a bucket for each tensor";
  EXPECT_LE(largest_difference(train(world, device, {.bucket_bytes = 1U << 30U}), expected),
            kTolerance)
      << "one bucket";
}

TEST_F(GpuOptimizer, ChannelsLastTrainsAsOnTheCpu) {
  const Context world = init();
  const auto expected = train(world, torch::kCPU);
  const auto format = torch::MemoryFormat::ChannelsLast;
  EXPECT_LE(largest_difference(train(world, local_device(world), {}, format), expected),
            kTolerance);
}

TEST_F(GpuOptimizer, AGradientOfOddStridesGoesIntoItsPlace) {
  const Context world = init();
  const auto device = local_device(world);
  const auto weight = torch::zeros({30, 50}, torch::device(device)).requires_grad_();
  torch::optim::SGD sgd({weight}, 1.0);
  DistributedOptimizer optimizer(world, sgd, {{"weight", weight}});
  const auto values = torch::arange(1500, torch::device(device)).to(torch::kFloat);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    // backward() gives the transposed memory as it is.
    weight.backward((values.reshape({50, 30}) * (1 + world.rank())).t());
    optimizer.synchronize();
    const double mean = mean_over_ranks(world, [](int rank) { return 1.0 + rank; });
    EXPECT_TRUE(torch::allclose(weight.grad(), values.reshape({50, 30}).t() * mean));
  }
}

TEST_F(GpuOptimizer, AbsentGradientsCountAsZeroAndStayUndefinedWhereNoRankHasOne) {
  const Context world = init();
  const auto options = torch::device(local_device(world)).requires_grad(true);
  const auto a = torch::zeros({1000}, options);
  const auto b = torch::zeros({3}, options);
  const auto c = torch::zeros({5}, options);
  torch::optim::SGD sgd({a, b, c}, 1.0);
  DistributedOptimizer optimizer(world, sgd, {{"a", a}, {"b", b}, {"c", c}});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    a.sum().backward();
    if (world.rank() == 0) (b * 6.0).sum().backward();
    optimizer.step();
    EXPECT_TRUE(torch::allclose(a.grad(), torch::ones_like(a)));
    EXPECT_TRUE(torch::allclose(b.grad(), torch::full_like(b, 6.0 / world.size())));
    EXPECT_FALSE(c.grad().defined());
  }
  optimizer.zero_grad();
  optimizer.step();  // no rank has any
  EXPECT_FALSE(a.grad().defined());
}

TEST_F(GpuOptimizer, LateGradientsOnAStreamOfTheUserAreWaitedFor) {
  const Context world = init();
  const auto device = local_device(world);
  const c10::cuda::CUDAStreamGuard stream(
      c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index()));
  const auto weight = torch::zeros({1 << 20}, torch::device(device)).requires_grad_();
  torch::optim::SGD sgd({weight}, 1.0);
  DistributedOptimizer optimizer(world, sgd, {{"weight", weight}});
  const auto heavy = torch::rand({4096, 4096}, torch::device(device));
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    auto product = heavy;
    for (int i = 0; i < 10; ++i) product = torch::mm(product, heavy) / 4096;
    // Late, and 1 + rank whatever the product is.
    const auto factor = (product[0][0] * 0.0) + (1.0 + world.rank());
    (weight * factor).sum().backward();
    optimizer.synchronize();
    const double mean = mean_over_ranks(world, [](int rank) { return 1.0 + rank; });
    EXPECT_TRUE(torch::allclose(weight.grad(), torch::full_like(weight, mean))) << step;
  }
}

constexpr std::array kCompressions = {Compression::none, Compression::float16,
                                      Compression::bfloat16};

// A GPU sums in an order of its own, and rounds each partial sum to the wire type.
TEST_F(GpuOptimizer, CompressedGradientsAreAveragedAsOnTheCpu) {
  const Context world = init();
  for (const Compression compression : kCompressions) {
    for (const auto type : {torch::kHalf, torch::kFloat, torch::kDouble}) {
      const auto average = [&](const torch::Device& device) {
        const auto options = torch::dtype(type).device(device).requires_grad(true);
        const auto a = torch::zeros({100003}, options);
        const auto b = torch::zeros({77}, options);
        torch::optim::SGD sgd({a, b}, 1.0);
        DistributedOptimizer optimizer(world, sgd, {{"a", a}, {"b", b}},
                                       {.compression = compression});
        const void* place = nullptr;
        for (int step = 0; step < 3; ++step) {
          optimizer.zero_grad();
          torch::manual_seed(seed() + static_cast<std::uint64_t>(world.rank()));
          const auto values = torch::randn({100003}).to(type);
          a.backward(values.to(device));
          b.backward(values.to(device).narrow(0, 1, 77));  // not aligned for vectors
          optimizer.synchronize();
          EXPECT_EQ(a.grad().scalar_type(), type);
          EXPECT_TRUE(place == nullptr || place == a.grad().data_ptr());
          place = a.grad().data_ptr();
        }
        return torch::cat({a.grad(), b.grad()}).cpu().to(torch::kDouble);
      };
      const auto expected = average(torch::kCPU);
      const double unit = compression == Compression::none && type != torch::kHalf       ? 0x1p-22
                          : compression == Compression::bfloat16 && type != torch::kHalf ? 0x1p-7
                                                                                         : 0x1p-10;
      const auto error = (average(local_device(world)) - expected).abs().max().item<double>();
      EXPECT_LE(error, world.size() * 5 * unit) << name_of(compression) << ' ' << type;
    }
  }
}

TEST_F(GpuOptimizer, ScaledGradientsAreDividedInEveryWireType) {
  const Context world = init();
  const auto device = local_device(world);
  for (const Compression compression : kCompressions) {
    const auto weight = torch::zeros({100003}, torch::device(device)).requires_grad_();
    torch::optim::SGD sgd({weight}, 1.0);
    DistributedOptimizer optimizer(world, sgd, {{"weight", weight}}, {.compression = compression});
    GradScaler scaler(optimizer, {.initial_scale = 1024.0});
    for (const std::int64_t bad : {-1L, 0L, 50000L, 100002L, -1L}) {
      optimizer.zero_grad();
      auto gradient = torch::full({100003}, 3.0, device);
      if (bad >= 0 && world.rank() == world.size() - 1) {
        gradient[bad] = std::numeric_limits<float>::quiet_NaN();
      }
      weight.backward(scaler.scale(gradient));
      EXPECT_EQ(scaler.step(), bad < 0) << name_of(compression) << ", element " << bad;
      scaler.update();
    }
    EXPECT_TRUE((weight == -6.0).all().item<bool>()) << name_of(compression);
    EXPECT_EQ(scaler.current_scale(), 128.0);
    // In place: nothing is copied, and still divided once.
    weight.mutable_grad().zero_();
    scaler.scale((weight * 5.0).sum()).backward();
    scaler.unscale_();
    EXPECT_TRUE((weight.grad() == 5.0).all().item<bool>()) << name_of(compression);
  }
}

TEST_F(GpuOptimizer, AnInfinityOnOneRankSkipsTheStepOnAll) {
  const Context world = init();
  const auto device = local_device(world);
  auto network = small_network(seed());
  network->to(device);
  torch::optim::SGD sgd(network->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  DistributedOptimizer optimizer(world, sgd, network->named_parameters());
  GradScaler scaler(optimizer, {.initial_scale = 8.0});
  for (int step = 0; step < 3; ++step) {
    const bool bad = step == 1;
    const auto before = copies_of(network->parameters());
    optimizer.zero_grad();
    auto loss = loss_of(network, my_batch(world, device, step));
    if (bad && world.rank() == world.size() - 1) {
      loss = loss * std::numeric_limits<float>::infinity();
    }
    scaler.scale(loss).backward();
    EXPECT_EQ(scaler.step(), !bad) << step;
    scaler.update();
    EXPECT_EQ(scaler.current_scale(), step == 0 ? 8.0 : 4.0);
    EXPECT_EQ(torch::equal(before[0], network->parameters()[0]), bad) << step;
  }
  for (const auto& parameter : network->parameters()) {
    EXPECT_TRUE(equals_root(world, parameter));
    EXPECT_TRUE(torch::isfinite(parameter).all().item<bool>());
  }
}

TEST_F(GpuOptimizer, HalfPrecisionGradientsAreAveragedInTheirType) {
  const Context world = init();
  for (const auto type : {torch::kHalf, torch::kBFloat16}) {
    const auto weight =
        torch::zeros({1000}, torch::dtype(type).device(local_device(world))).requires_grad_();
    torch::optim::SGD sgd({weight}, 1.0);
    DistributedOptimizer optimizer(world, sgd, {{"weight", weight}}, {.op = ReduceOp::sum});
    (weight * 2.0).sum().backward();
    optimizer.step();
    EXPECT_EQ(weight.grad().scalar_type(), type);
    EXPECT_TRUE((weight.grad() == 2.0 * world.size()).all().item<bool>()) << type;
  }
}

}  // namespace
}  // namespace hora::internal::test
