// Optimizers that are destroyed after backward() without step().
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"
#include "tests/support/logged_lines.h"

namespace hora::internal::test {
namespace {

// A trunk that every rank uses, and a branch that the first rank alone uses, in buckets of their
// own.
struct Branched {
  explicit Branched(const Context& context, DistributedOptimizerOptions options = {})
      : world(context) {
    options.bucket_bytes = 4;
    optimizer.emplace(world, sgd,
                      torch::OrderedDict<std::string, torch::Tensor>{
                          {"trunk", trunk}, {"branch", branch}, {"unused", unused}},
                      options);
  }
  void backward() {
    torch::Tensor loss = trunk.sum();
    if (world.rank() == 0) loss = loss + branch.sum();
    loss.backward();
  }

  const Context& world;
  torch::Tensor trunk = torch::zeros({3}, torch::requires_grad());
  torch::Tensor branch = torch::zeros({3}, torch::requires_grad());
  torch::Tensor unused = torch::zeros({3}, torch::requires_grad());
  torch::optim::SGD sgd{{trunk, branch, unused}, 1.0};
  std::optional<DistributedOptimizer> optimizer;
};

DistributedOptimizerOptions hooked() {
  return {.hook = std::make_shared<PowerSgd>()};
}

class OpenRound : public testing::Test {
 protected:
  const Context world_ = init();
};

TEST_F(OpenRound, EndsWhereAllDestroyTheirs) {
  const std::vector<DistributedOptimizerOptions> ways{{},
                                                      {.op = ReduceOp::adasum},
                                                      {.compression = Compression::float16},
                                                      {.static_graph = true},
                                                      {.sharding = Sharding::state},
                                                      hooked()};
  for (const DistributedOptimizerOptions& options : ways) {
    Branched training(world_, options);
    training.backward();
    training.optimizer.reset();
    // The ranks are together again.
    Branched next(world_);
    next.backward();
    next.optimizer->step();
    EXPECT_TRUE(torch::allclose(next.trunk, torch::full({3}, -1.0)));
  }
}

TEST_F(OpenRound, EndsWithThoseWhoStep) {
  Branched training(world_);
  training.backward();
  if (world_.rank() == 0) {
    training.optimizer.reset();
  } else {
    training.optimizer->step();
    EXPECT_TRUE(torch::allclose(training.trunk, torch::full({3}, -1.0)));
    EXPECT_TRUE(torch::allclose(training.branch, torch::full({3}, -1.0 / world_.size())));
  }
}

// Each informs the others that it does not step.
TEST_F(OpenRound, MayBeAveragedAlready) {
  Branched training(world_, {.sharding = Sharding::state});
  training.backward();
  training.optimizer->synchronize();
  if (world_.rank() == 0) {
    training.optimizer.reset();
  } else {
    training.optimizer->zero_grad();
  }
}

TEST_F(OpenRound, MayFollowOneThatNoRankHasUsed) {
  Branched training(world_, {.sharding = Sharding::state});
  training.backward();
  training.optimizer->synchronize();
  training.backward();
  if (world_.rank() == 0) {
    training.optimizer.reset();
  } else {
    training.optimizer->zero_grad();
  }
}

TEST_F(OpenRound, OfSharesIsNotForSomeToStep) {
  Branched training(world_, {.sharding = Sharding::state});
  training.backward();
  if (world_.rank() == 0) {
    training.optimizer.reset();
  } else {
    expect_error(ErrorCode::mismatch,
                 testing::HasSubstr("rank 0 is in step 1 after 0 calls of zero_grad()"),
                 [&] { training.optimizer->step(); });
    EXPECT_TRUE(torch::equal(training.trunk, torch::zeros({3})));
  }
}

TEST_F(OpenRound, GradientsThatAreNotUsedNeedNotBeRight) {
  Branched training(world_);
  training.backward();
  if (world_.rank() == 0) training.unused.set_data(torch::zeros({5}));
  training.optimizer.reset();
}

// A rank without an open round does not take part; the context's end releases the others.
TEST(OpenRoundAtTheEnd, IsGivenUpWhereARankHasLeft) {
  const Context world = init();
  Branched training(world);
  if (world.rank() == 0) training.backward();
  barrier(world);
  training.optimizer.reset();
}

TEST(OpenRoundAtTheEnd, IsGivenUpAfterShutdown) {
  Context world = init();
  Branched training(world);
  training.trunk.sum().backward();
  world.shutdown();
  training.optimizer.reset();
}

class ShortStallWarning {
 public:
  ShortStallWarning() { ::setenv("HORA_STALL_WARNING", "50ms", 1); }
  ~ShortStallWarning() { ::unsetenv("HORA_STALL_WARNING"); }
};

class OpenRoundOfOneRank : public testing::Test {
 protected:
  bool has_said(const std::string& text) const {
    return lines_.have("destroyed after backward() without step(), " + text);
  }
  void meet() const {
    float value = 0.0F;
    allreduce(world_, view(&value, 1), {.name = "said"});
  }

  const ShortStallWarning setting_;
  const Context world_ = init();
  const LoggedLines lines_;
};

TEST_F(OpenRoundOfOneRank, IsWaitedForWithAWord) {
  if (world_.size() == 1) GTEST_SKIP() << "no other rank to wait for";
  Branched training(world_);
  if (world_.rank() == 0) {
    training.backward();
    std::thread reader([&] {
      while (!has_said("waits for")) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      meet();
    });
    training.optimizer.reset();
    reader.join();
  } else {
    meet();
    EXPECT_FALSE(has_said(""));
    training.optimizer->step();
  }
}

// No other rank opens a round until the first one has continued.
TEST_F(OpenRoundOfOneRank, IsLeftBehindInTheEnd) {
  if (world_.size() == 1) GTEST_SKIP() << "no other rank to wait for";
  const std::vector<DistributedOptimizerOptions> ways{{},
                                                      {.op = ReduceOp::adasum},
                                                      {.compression = Compression::float16},
                                                      {.buffers = {torch::ones({3})}},
                                                      {.sharding = Sharding::state}};
  for (const DistributedOptimizerOptions& options : ways) {
    Branched training(world_, options);
    if (world_.rank() == 0) {
      training.backward();
      training.optimizer.reset();
      EXPECT_TRUE(has_said("gives up waiting"));
      meet();
    } else {
      meet();
      if (options.sharding == Sharding::state) {
        expect_error(ErrorCode::mismatch, testing::HasSubstr("rank 0 is in step 1"),
                     [&] { training.optimizer->step(); });
      } else {
        training.optimizer->step();
        EXPECT_LT(training.trunk.max().item<float>(), 0.0F) << "of the first rank's gradient";
      }
    }
    Branched next(world_);
    next.backward();
    next.optimizer->step();
    EXPECT_TRUE(torch::allclose(next.trunk, torch::full({3}, -1.0)));
  }
}

}  // namespace
}  // namespace hora::internal::test
