// Promise 13 in a training, in which all ranks show the same step time: the rank whose backward
// takes longer is named, with that phase; where all take as long, none is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/logged_lines.h"

namespace hora::internal::test {
namespace {

using namespace std::chrono_literals;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kLayers = 8;
constexpr std::int64_t kWidth = 32;
/// The root looks back over 50 steps that took 10 s or longer.
constexpr int kSteps = 60;
constexpr auto kDelay = 200ms;

struct Layers : torch::nn::Module {
  Layers() {
    for (int i = 0; i < kLayers; ++i) {
      all.push_back(register_module(std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    }
  }
  std::vector<torch::nn::Linear> all;
};

class Straggler : public testing::Test {
 protected:
  /// A bucket for each parameter. The delay lies between the last layer's gradients, which are the
  /// first to come, and all others.
  void train(const std::function<bool(int rank)>& is_slow) {
    const Context world = init();
    torch::manual_seed(1);
    Layers layers;
    const auto input = torch::randn({8, kWidth});
    const auto labels = torch::randint(kWidth, {8}, torch::kLong);
    torch::optim::SGD sgd(layers.parameters(), 0.01);
    DistributedOptimizer optimizer(world, sgd, layers.named_parameters(), {.bucket_bytes = 1});
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      torch::Tensor values = input;
      for (int i = 0; i < kLayers - 1; ++i) values = torch::tanh(layers.all[i](values));
      if (is_slow(world.rank())) {
        values.register_hook([](const torch::Tensor&) { std::this_thread::sleep_for(kDelay); });
      }
      torch::cross_entropy_loss(layers.all.back()(values), labels).backward();
      optimizer.step();
    }
  }
  /// On the root, which alone knows.
  std::vector<std::string> warnings() const { return lines_.with(" came last to "); }

 private:
  const LoggedLines lines_;
};

TEST_F(Straggler, IsNamedWithItsPhase) {
  bool is_root = false;
  train([&](int rank) {
    is_root = rank == 0;
    return rank == 1;
  });
  if (!is_root) {
    EXPECT_THAT(warnings(), IsEmpty());
    return;
  }
  EXPECT_THAT(warnings(), ElementsAre(AllOf(HasSubstr("rank 1 (host "),
                                            HasSubstr(" ms a step after all others"),
                                            HasSubstr(" of it lost in phase \"backward\": "))));
}

TEST_F(Straggler, AnEvenTwinStaysSilent) {
  train([](int) { return true; });
  EXPECT_THAT(warnings(), IsEmpty());
}

}  // namespace
}  // namespace hora::internal::test
