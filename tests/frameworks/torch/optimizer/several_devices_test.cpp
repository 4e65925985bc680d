// A model whose parameters are on two devices of each process, against the same on one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/gradient_hook.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"
#include "tests/support/other_device/other_device.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// The first layer on the CPU, the second one on `device`; `unused` has no gradient.
struct Model {
  explicit Model(const torch::Device& second = other_device(1)) : device(second) {
    torch::manual_seed(seed());
    const auto add = [&](const char* name, at::IntArrayRef sizes, const torch::Device& where) {
      parameters.insert(name, (torch::randn(sizes) * 0.1).to(where).requires_grad_());
    };
    add("first.weight", {300, 108}, torch::kCPU);  // large enough for the tensor arena
    add("first.bias", {300}, torch::kCPU);
    add("second.weight", {90, 300}, device);
    add("second.bias", {90}, device);
    add("third.weight", {5, 90}, torch::kCPU);
    add("unused", {7}, device);
  }

  torch::Tensor loss(const Batch& batch) const {
    auto values = torch::linear(batch.images.flatten(1), parameters["first.weight"],
                                parameters["first.bias"]);
    values = torch::linear(torch::tanh(values).to(device), parameters["second.weight"],
                           parameters["second.bias"]);
    values = torch::linear(torch::tanh(values).cpu(), parameters["third.weight"]);
    return torch::cross_entropy_loss(values, batch.labels);
  }
  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> all;
    for (const auto& item : parameters) all.push_back(item.value().detach().cpu().clone());
    return all;
  }
  void expect_gradients_in_place() const {
    for (const auto& item : parameters) {
      const torch::Tensor& gradient = item.value().grad();
      ASSERT_EQ(gradient.defined(), item.key() != "unused") << item.key();
      if (gradient.defined()) {
        EXPECT_EQ(gradient.device(), item.value().device()) << item.key();
      }
    }
  }

  torch::Device device;
  torch::OrderedDict<std::string, torch::Tensor> parameters;
};

/// A model in training.
struct ModelTraining {
  explicit ModelTraining(const Context& world, const torch::Device& second = other_device(1),
                         const DistributedOptimizerOptions& options = {},
                         const MakeOptimizer& make = make_sgd)
      : model(second),
        wrapped(make(model.parameters.values())),
        optimizer(world, *wrapped, model.parameters, options) {}

  void step(const Batch& batch) {
    optimizer.zero_grad();
    model.loss(batch).backward();
    optimizer.step();
  }

  Model model;
  std::unique_ptr<torch::optim::Optimizer> wrapped;
  DistributedOptimizer optimizer;
};

class SeveralDevices : public WorldTest {
 protected:
  using Steps = std::function<void(ModelTraining&)>;

  /// `steps` on two devices and on one give the same bits.
  void expect_as_on_one(const DistributedOptimizerOptions& options, const Steps& steps) const {
    ModelTraining one(world_, torch::kCPU, options);
    steps(one);
    ModelTraining two(world_, other_device(1), options);
    steps(two);
    two.model.expect_gradients_in_place();
    expect_same_bits(two.model.values(), one.model.values());
    for (const torch::Tensor& value : two.model.values()) {
      EXPECT_TRUE(equals_root(world_, value));
    }
  }
};

TEST_F(SeveralDevices, TrainTheSameBits) {
  for (const DistributedOptimizerOptions& options :
       std::vector<DistributedOptimizerOptions>{{},
                                                {.bucket_bytes = 64},
                                                {.bucket_bytes = 1U << 30U},
                                                {.op = ReduceOp::sum},
                                                {.gradient_predivide_factor = 2.0},
                                                {.number_of_groups = 2},
                                                {.static_graph = true},
                                                {.compression = Compression::bfloat16},
                                                {.compression = Compression::float16},
                                                {.op = ReduceOp::adasum}}) {
    expect_as_on_one(options, [&](ModelTraining& training) {
      for (int step = 0; step < 4; ++step) training.step(my_batch(world_, step));
    });
  }
  const auto with_hook = [&](const torch::Device& device) {
    ModelTraining training(world_, device, {.hook = std::make_shared<PowerSgd>(PowerSgdOptions{})});
    for (int step = 0; step < 4; ++step) training.step(my_batch(world_, step));
    return training.model.values();
  };
  expect_same_bits(with_hook(other_device(0)), with_hook(torch::kCPU));
}

TEST_F(SeveralDevices, PassesAddUpOnEachAndARankWithoutBackwardCountsAsZero) {
  expect_as_on_one({.backward_passes_per_step = 2}, [&](ModelTraining& training) {
    for (int step = 0; step < 6; ++step) {
      training.optimizer.zero_grad();
      const bool leaves_out = world_.size() > 1 && step % 3 == world_.rank();
      for (int pass = 0; pass < 2 && !leaves_out; ++pass) {
        training.model.loss(my_batch(world_, 2 * step + pass)).backward();
      }
      training.optimizer.step();
    }
  });
}

TEST_F(SeveralDevices, ClippingTakesAllOfThem) {
  ModelTraining one(world_, torch::kCPU);
  ModelTraining two(world_);
  for (int step = 0; step < 3; ++step) {
    const auto clip = [&](ModelTraining& training) {
      training.optimizer.zero_grad();
      training.model.loss(my_batch(world_, step)).backward();
      const double norm = training.optimizer.clip_grad_norm_(0.01);
      training.optimizer.step();
      return norm;
    };
    const double norm = clip(two);
    EXPECT_GT(norm, 0.01);
    EXPECT_NEAR(norm, clip(one), 1e-6 * norm);
  }
  expect_close(two.model.values(), one.model.values(), 1e-6);
}

TEST_F(SeveralDevices, AScalerFindsWhatIsNotFiniteOnAny) {
  ModelTraining training(world_);
  GradScaler scaler(training.optimizer, {.initial_scale = 4.0});
  const auto scaled_step = [&] {
    training.optimizer.zero_grad();
    scaler.scale(training.model.loss(my_batch(world_, 0))).backward();
    scaler.step();
    scaler.update();
  };
  scaled_step();
  const auto before = training.model.values();
  EXPECT_EQ(scaler.current_scale(), 4.0);
  training.model.parameters["second.bias"].register_hook([&](const torch::Tensor& gradient) {
    return world_.rank() == 0 ? gradient / 0.0 : gradient;
  });
  scaled_step();
  EXPECT_LT(scaler.current_scale(), 4.0);
  expect_same_bits(training.model.values(), before);
}

TEST_F(SeveralDevices, BuffersComeFromTheFirstRank) {
  const auto here = torch::full({3}, 1.0 + world_.rank());
  const auto there = torch::full({2, 2}, 10.0 + world_.rank()).to(other_device(1));
  ModelTraining training(world_, other_device(0), {.buffers = {here, there}});
  training.step(my_batch(world_, 0));
  EXPECT_TRUE(torch::equal(here, torch::full({3}, 1.0)));
  EXPECT_TRUE(torch::equal(there.cpu(), torch::full({2, 2}, 10.0)));
}

TEST_F(SeveralDevices, RanksMayRunOutOfData) {
  expect_as_on_one({}, [&](ModelTraining& training) {
    for (int step = 0; step <= world_.rank(); ++step) training.step(my_batch(world_, step));
    EXPECT_EQ(training.optimizer.join(), world_.size() - 1);
    for (int step = 0; step < 2; ++step) training.step(my_batch(world_, 100 + step));
  });
}

TEST_F(SeveralDevices, ParametersThatDifferBetweenRanksAreNamed) {
  if (world_.size() == 1) return;  // one rank cannot differ
  ModelTraining training(world_);
  {
    const torch::NoGradGuard no_grad;
    if (world_.rank() == 1) training.model.parameters["second.bias"].add_(1.0);
  }
  const Error error = expect_error(ErrorCode::mismatch, HasSubstr("rank 1 from rank 0"),
                                   [&] { training.step(my_batch(world_, 0)); });
  EXPECT_EQ(error.tensor(), "second.bias");
}

TEST_F(SeveralDevices, RanksMustAgreeWhetherTheyHaveSeveral) {
  if (world_.size() == 1) return;  // one rank cannot disagree
  const torch::Device device = world_.rank() == 0 ? other_device(1) : torch::Device(torch::kCPU);
  expect_error(ErrorCode::mismatch, AllOf(HasSubstr("several devices"), HasSubstr("one device")),
               [&] { const ModelTraining training(world_, device); });
}

TEST_F(SeveralDevices, SomeParametersMustBeWhereThisRankAverages) {
  const auto there = torch::zeros({3}).to(other_device(0)).requires_grad_();
  torch::optim::SGD sgd({there}, 1.0);
  const Error error =
      expect_error(ErrorCode::invalid_argument,
                   AllOf(HasSubstr(other_device(0).str()), HasSubstr("hora::local_device()")), [&] {
                     const DistributedOptimizer optimizer(world_, sgd, {{"there", there}});
                   });
  EXPECT_EQ(error.tensor(), "there");
}

TEST_F(SeveralDevices, GoWithoutShards) {
  expect_error(
      ErrorCode::invalid_argument, AllOf(HasSubstr("sharding"), HasSubstr("several devices")), [&] {
        const ModelTraining training(world_, other_device(1), {.sharding = Sharding::state});
      });
}

}  // namespace
}  // namespace hora::internal::test
