// Buckets laid out anew after the first step, in the order of its gradients; static graphs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "frameworks/torch/optimizer/round.h"
#include "tests/frameworks/torch/optimizer/training.h"
#include "tests/support/expect_error.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class BucketOrder : public testing::Test {
 protected:
  const Context world_ = init();
  const Peers peers_ = peers_of(world_, kWorld);
};

/// As far as a round goes: the first rank's gradients have come as `arrivals` says.
void end_round(LayoutChanges& changes, const std::vector<std::size_t>& arrivals,
               const std::vector<bool>& present) {
  for (const std::size_t gradient : arrivals) changes.note(gradient);
  changes.end_round({.arrivals = changes.arrivals()}, present);
}

TEST_F(BucketOrder, WhatNoRankHadComesLastOrNotAtAll) {
  const BucketOptions options{.name = "order"};
  for (const bool fixed : {false, true}) {
    LayoutChanges changes(peers_, options, 4, fixed, std::nullopt);
    EXPECT_FALSE(changes.pending());
    end_round(changes, {2, 0, 3, 2}, {true, false, true, true});
    EXPECT_TRUE(changes.pending());
    EXPECT_THAT(changes.order(),
                fixed ? testing::Matcher<std::vector<std::size_t>>(ElementsAre(3, 0, 2))
                      : ElementsAre(1, 3, 0, 2));
    EXPECT_EQ(changes.leaves_out(1), fixed);
    EXPECT_FALSE(changes.leaves_out(3));
    EXPECT_TRUE(changes.arrivals().empty()) << "it is learned once";
  }
}

TEST_F(BucketOrder, OfARankThatHasJoinedIsTheRoots) {
  const BucketOptions options{.name = "order"};
  LayoutChanges changes(peers_, options, 3, /*fixed=*/true, std::nullopt);
  changes.take(0);
  EXPECT_FALSE(changes.pending()) << "where the root has not learned it";
  const int root = world_.size() - 1;
  if (world_.rank() == root) end_round(changes, {1, 0}, {true, true, false});
  changes.take(root);
  EXPECT_THAT(changes.order(), ElementsAre(0, 1));
  EXPECT_TRUE(changes.leaves_out(2));
}

TEST_F(BucketOrder, HasTheSameBitsAsGroupsWhichStayAsTheyAre) {
  // Buckets of a few gradients each, so that the order matters.
  Training learned(world_, {.bucket_bytes = 512});
  Training grouped(world_, {.number_of_groups = 3});
  for (int step = 0; step < 4; ++step) {
    learned.step(my_batch(world_, step));
    grouped.step(my_batch(world_, step));
    expect_same_bits(learned.network->parameters(), grouped.network->parameters());
  }
}

/// Four parameters, two in a bucket, whose gradients come in the order last, first, third, second.
class Chain {
 public:
  explicit Chain(const Context& world, DistributedOptimizerOptions options = {})
      : world_(world), sgd_(parameters_, 0.0) {
    torch::OrderedDict<std::string, torch::Tensor> named;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      named.insert(std::to_string(i), parameters_[i]);
    }
    options.bucket_bytes = 512;
    optimizer_.emplace(world_, sgd_, named, options);
  }

  /// Buckets whose average ends while two of the four gradients have come, and no more do. As long
  /// as fewer than `expected` have, it waits, at most 10 s.
  std::uint64_t step(std::uint64_t expected) {
    optimizer_->zero_grad();
    const torch::Tensor first_two = parameters_[1] * parameters_[2];
    std::uint64_t ended = 0;
    const auto before = world_.statistics().operations;
    first_two.register_hook([&](const torch::Tensor&) {
      barrier(world_);
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      do {
        world_.progress();
        ended = world_.statistics().operations - before - 1;
      } while (ended < expected && std::chrono::steady_clock::now() < end);
    });
    (first_two * parameters_[0] * parameters_[3]).sum().backward();
    optimizer_->step();
    return ended;
  }

 private:
  static torch::Tensor parameter() { return torch::ones({64}, torch::requires_grad()); }

  const Context& world_;
  const std::vector<torch::Tensor> parameters_{parameter(), parameter(), parameter(), parameter()};
  torch::optim::SGD sgd_;
  std::optional<DistributedOptimizer> optimizer_;
};

TEST_F(BucketOrder, ABucketIsAveragedAsSoonAsItsGradientsHaveCome) {
  if (world_.size() == 1) return;  // nothing is averaged
  Chain chain(world_);
  EXPECT_EQ(chain.step(0), 0u);
  EXPECT_EQ(chain.step(1), 1u);
  EXPECT_EQ(chain.step(1), 1u);
}

TEST_F(BucketOrder, OfGroupsStays) {
  if (world_.size() == 1) return;
  Chain chain(world_, {.number_of_groups = 2});
  for (int step = 0; step < 3; ++step) EXPECT_EQ(chain.step(0), 0u);
}

class StaticGraph : public testing::Test {
 protected:
  torch::Tensor weight(std::int64_t size) { return torch::zeros({size}, torch::requires_grad()); }
  const Context world_ = init();
};

TEST_F(StaticGraph, WhatNoRankUsesDoesNotHoldItsBucketBack) {
  const auto used = weight(8);
  const auto unused = weight(8);
  torch::optim::SGD sgd({used, unused}, 1.0);
  DistributedOptimizer optimizer(world_, sgd, {{"used", used}, {"unused", unused}},
                                 {.static_graph = true});
  used.sum().backward();
  optimizer.step();
  const auto before = world_.statistics().operations;
  optimizer.zero_grad();
  used.sum().backward();
  // Submitted by the hook: done without any step().
  barrier(world_);
  if (world_.size() > 1) {
    EXPECT_EQ(world_.statistics().operations - before, 2U);
  }
  optimizer.step();
  EXPECT_EQ(used[0].item<float>(), -2.0F);
}

TEST_F(StaticGraph, AGradientThatTheFirstStepDidNotHaveThrows) {
  const auto used = weight(3);
  const auto unused = weight(3);
  torch::optim::SGD sgd({used, unused}, 1.0);
  DistributedOptimizer optimizer(world_, sgd, {{"used", used}, {"unused", unused}},
                                 {.static_graph = true});
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    used.sum().backward();
    optimizer.step();
    optimizer.zero_grad();
    expect_error(ErrorCode::invalid_use, AllOf(HasSubstr("'unused'"), HasSubstr("static_graph")),
                 [&] { unused.sum().backward(); });
  }
}

}  // namespace
}  // namespace hora::internal::test
