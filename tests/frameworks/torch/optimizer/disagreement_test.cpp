// Ranks whose optimizers hold different parameters, or step by other options or learning rates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch/grad_scaler.h>

#include <memory>
#include <string>
#include <utility>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

torch::Tensor weight(std::int64_t size = 3) {
  return torch::zeros({size}, torch::requires_grad());
}

// All ranks must refuse, with the same text.
class Disagreement : public WorldTest {
 protected:
  // `own`: parameters of the last rank; `others`: of all others.
  void expect_mismatch(const Named& others, const Named& own,
                       const testing::Matcher<std::string>& text) {
    const Named& named = last() ? own : others;
    torch::optim::SGD sgd(named.values(), 0.1);
    const std::string what = expect_error(ErrorCode::mismatch, text, [&] {
                               DistributedOptimizer(world_, sgd, named);
                             }).what();
    EXPECT_EQ(broadcast_object(world_, what), what);
    OneWeight next(world_);  // is right
    next.backward();
    next.optimizer.step();
    EXPECT_TRUE(torch::allclose(next.weight, torch::full({4}, -1.0)));
  }
};

TEST_F(Disagreement, AboutParameters) {
  const auto a = weight();
  expect_mismatch({{"first", a}, {"second", weight()}}, {{"first", a}, {"other", weight()}},
                  AllOf(HasSubstr("'second'"), HasSubstr("'other'"), HasSubstr("rank 0"),
                        HasSubstr("rank " + std::to_string(world_.size() - 1))));
  expect_mismatch({{"a", a}}, {{"a", weight(4)}}, AllOf(HasSubstr("[3]"), HasSubstr("[4]")));
  expect_mismatch({{"a", a}},
                  {{"a", torch::zeros({3}, torch::dtype(torch::kDouble).requires_grad(true))}},
                  AllOf(HasSubstr("float32"), HasSubstr("float64")));
  expect_mismatch({{"a", torch::zeros({2, 3}, torch::requires_grad())}},
                  {{"a", torch::zeros({3, 2}).t().requires_grad_()}}, HasSubstr("strides"));
  expect_mismatch({{"a", a}}, {{"a", a}, {"b", weight()}},
                  AllOf(HasSubstr("'b'"), HasSubstr("none")));
}

TEST_F(Disagreement, AboutTheScaleOfTheLoss) {
  OneWeight one(world_);
  DistributedOptimizer& optimizer = one.optimizer;
  expect_error(ErrorCode::mismatch,
               AllOf(HasSubstr("GradScaler"), HasSubstr("initial scale 1024"),
                     HasSubstr("initial scale 512")),
               [&] { GradScaler(optimizer, {.initial_scale = last() ? 512.0 : 1024.0}); });
  expect_error(ErrorCode::mismatch, HasSubstr("switched off"),
               [&] { GradScaler(optimizer, {.enabled = !last()}); });
  GradScaler scaler(optimizer, {.initial_scale = 16.0});  // the next one is right
  scaler.scale(one.weight.sum()).backward();
  EXPECT_TRUE(scaler.step());
  EXPECT_TRUE(torch::allclose(one.weight, torch::full({4}, -1.0)));
}

TEST_F(Disagreement, AboutOptions) {
  const auto differ = [&](const DistributedOptimizerOptions& options, const std::string& text) {
    expect_error(
        ErrorCode::mismatch, EndsWith(text + ". Every rank must construct the same one"),
        [&] { Training(world_, world_.rank() == 1 ? options : DistributedOptimizerOptions{}); });
  };
  differ({.bucket_bytes = 2000}, "rank 1 has buckets of 2000 bytes");
  differ({.compression = Compression::float16},
         "rank 0 has compression none, rank 1 has compression float16");
  differ({.backward_passes_per_step = 2},
         "rank 0 has backward_passes_per_step 1, rank 1 has backward_passes_per_step 2");
  differ({.gradient_predivide_factor = 2.0},
         "rank 0 has gradient_predivide_factor 1, rank 1 has gradient_predivide_factor 2");
  differ({.number_of_groups = 1}, "float32 [4, 3, 3, 3] in group 0");
  differ({.static_graph = true}, "rank 0 has static_graph 0, rank 1 has static_graph 1");
  differ({.sharding = Sharding::in_backward},
         "rank 0 has sharding off, rank 1 has sharding in_backward");
  differ({.buffers = {torch::zeros({2})}}, "rank 0 has none, rank 1 has 'buffer 0' float32 [2]");
}

class RanksDiffer : public WorldTest {
 protected:
  std::string last_rank() const { return "rank " + std::to_string(world_.size() - 1); }
};

TEST_F(RanksDiffer, InParametersInTheFirstStep) {
  for (const auto type : {torch::kHalf, torch::kFloat, torch::kDouble}) {
    Training training(world_, {}, make_sgd, type);
    const auto parameters = training.network->parameters();
    for (const int index : {1, 3}) {
      if (last()) parameters[index].detach().add_(1.0);
    }
    const auto backward = [&] {
      for (const auto& parameter : parameters) parameter.sum().backward();
    };
    const auto before = training.weights();
    backward();
    expect_error(
        ErrorCode::mismatch,
        AllOf(HasSubstr("parameters differ between ranks in the first step: '0.bias' and 1 "
                        "more: " +
                        last_rank() + " from rank 0"),
              HasSubstr("broadcast_parameters(context, module)"), HasSubstr("compare_ranks")),
        [&] { training.optimizer.step(); });
    expect_same_bits(training.weights(), before);
    // Mended, the same optimizer goes on.
    broadcast_parameters(world_, *training.network);
    training.optimizer.zero_grad();
    backward();
    training.optimizer.step();
    EXPECT_TRUE(equals_root(world_, parameters[1]));
  }
}

TEST_F(RanksDiffer, InLearningRatesOrOtherOptionsFromTheFirstStepOn) {
  const auto differ = [&](const torch::optim::SGDOptions& options,
                          const testing::Matcher<std::string>& text) {
    Training training(world_, {}, [&](auto all) {
      return std::make_unique<torch::optim::SGD>(std::move(all), options);
    });
    training.backward(my_batch(world_, 0));
    expect_error(ErrorCode::mismatch, text, [&] { training.optimizer.step(); });
  };
  differ(last() ? 0.25 : 0.5,
         AllOf(HasSubstr("learning rates of parameter group 0"), HasSubstr("in step 1"),
               HasSubstr("0.5; " + last_rank() + " has 0.25")));
  differ(torch::optim::SGDOptions(0.5).momentum(last() ? 0.5 : 0.25),
         AllOf(HasSubstr("options (such as momentum) of parameter group 0"),
               HasSubstr("from " + last_rank())));
}

TEST_F(RanksDiffer, InLearningRatesBySchedulersThatPart) {
  Training training(world_);
  const auto train = [&] {
    for (int step = 0; step < 40; ++step) {
      if (step == 5 && last()) training.wrapped->param_groups()[0].options().set_lr(0.125);
      training.step(my_batch(world_, step));
    }
  };
  expect_error(ErrorCode::mismatch, AllOf(HasSubstr("in step 17"), HasSubstr("0.125")), train);
}

TEST_F(RanksDiffer, WhereTheyAreMeantTo) {
  const auto weight = torch::full({3}, 1.0 * world_.rank(), torch::requires_grad());
  torch::optim::SGD sgd({weight}, world_.rank() + 1.0);
  DistributedOptimizer optimizer(world_, sgd, {{"weight", weight}}, {.compare_ranks = false});
  weight.sum().backward();
  optimizer.step();
  EXPECT_TRUE(torch::equal(weight, torch::full({3}, -1.0)));
}

TEST_F(RanksDiffer, NotByThoseThatHaveJoined) {
  Training training(world_);
  if (!last()) training.optimizer.join();
  if (last()) {
    for (int step = 0; step < 20; ++step) training.step(my_batch(world_, step));
    training.optimizer.join();
  }
  expect_alike(world_, training.network);
}

}  // namespace
}  // namespace hora::internal::test
