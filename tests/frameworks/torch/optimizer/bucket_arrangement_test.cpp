// The order of buckets that ranks agree on in the first round.
#include "frameworks/torch/optimizer/bucket_arrangement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/frameworks/torch/optimizer/training.h"

namespace hora::internal::test {
namespace {

using testing::ElementsAre;

class Arrangement : public testing::Test {
 protected:
  bool is_first() const { return world_.rank() == 0; }

  const Context world_ = init();
  const Peers peers_ = peers_of(world_, kWorld);
};

// As far as an averager goes in a round.
void end_round(BucketArrangement& arrangement, const std::vector<bool>& present) {
  arrangement.begin();
  arrangement.wait();
  arrangement.learn(present);
}

TEST_F(Arrangement, IsTheFirstRanksLastArrivalFirst) {
  BucketArrangement arrangement(peers_, "arrangement", 4, /*fixed=*/false);
  const std::vector<std::size_t> arrivals =
      is_first() ? std::vector<std::size_t>{2, 0, 3, 2, 1} : std::vector<std::size_t>{0, 1, 2, 3};
  for (const std::size_t gradient : arrivals) arrangement.note(gradient);
  EXPECT_FALSE(arrangement.learned());
  end_round(arrangement, {true, true, true, true});
  ASSERT_TRUE(arrangement.learned());
  EXPECT_THAT(arrangement.order(), ElementsAre(1, 3, 0, 2));

  // Once.
  arrangement.note(1);
  end_round(arrangement, {true, true, true, true});
  EXPECT_THAT(arrangement.order(), ElementsAre(1, 3, 0, 2));
}

TEST_F(Arrangement, WhatNoRankHadComesLastOrNotAtAll) {
  for (const bool fixed : {false, true}) {
    BucketArrangement arrangement(peers_, fixed ? "fixed" : "open", 4, fixed);
    // The first rank lacks gradient 3, which others have; no rank has gradient 1.
    for (const std::size_t gradient : {0, 2}) arrangement.note(gradient);
    if (!is_first()) arrangement.note(3);
    end_round(arrangement, {true, false, true, true});
    if (fixed) {
      EXPECT_THAT(arrangement.order(), ElementsAre(3, 2, 0));
    } else {
      EXPECT_THAT(arrangement.order(), ElementsAre(1, 3, 2, 0));
    }
    EXPECT_EQ(arrangement.leaves_out(1), fixed);
    EXPECT_FALSE(arrangement.leaves_out(3));
  }
}

TEST_F(Arrangement, OfARankThatHasJoinedIsTheRoots) {
  if (world_.size() == 1) return;
  BucketArrangement arrangement(peers_, "arrangement", 3, /*fixed=*/true);
  if (!is_first()) {
    const std::vector<std::size_t> arrivals =
        world_.rank() == 1 ? std::vector<std::size_t>{1, 0} : std::vector<std::size_t>{0, 1};
    for (const std::size_t gradient : arrivals) arrangement.note(gradient);
    end_round(arrangement, {true, true, false});
  }
  join(world_);
  arrangement.take(/*root=*/1);
  EXPECT_THAT(arrangement.order(), ElementsAre(0, 1));
  EXPECT_TRUE(arrangement.leaves_out(2));
}

TEST_F(Arrangement, WhereTheRootHasNotLearnedNorHaveOthers) {
  BucketArrangement arrangement(peers_, "arrangement", 3, /*fixed=*/false);
  arrangement.take(0);
  EXPECT_FALSE(arrangement.learned());
}

TEST_F(Arrangement, HasTheSameBitsAsGroupsWhichStayAsTheyAre) {
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

TEST_F(Arrangement, ABucketIsAveragedAsSoonAsItsGradientsHaveCome) {
  if (world_.size() == 1) return;  // nothing is averaged
  Chain chain(world_);
  EXPECT_EQ(chain.step(0), 0u);
  EXPECT_EQ(chain.step(1), 1u);
  EXPECT_EQ(chain.step(1), 1u);
}

TEST_F(Arrangement, OfGroupsStays) {
  if (world_.size() == 1) return;
  Chain chain(world_, {.number_of_groups = 2});
  for (int step = 0; step < 3; ++step) EXPECT_EQ(chain.step(0), 0u);
}

}  // namespace
}  // namespace hora::internal::test
