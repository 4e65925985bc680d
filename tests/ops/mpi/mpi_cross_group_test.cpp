// MessageCrossGroup over MpiPointToPoint on real ranks.
//
// DirectExchange over MpiPointToPoint on real ranks, among allreduces.
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <numeric>
#include <string>

#include "ops/cross/cross_group.h"
#include "ops/mpi/mpi_point_to_point.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::Bytes;

struct Variant {
  const char* name;
  CrossOptions options;
};

class MpiCrossGroupTest : public testing::TestWithParam<Variant> {
 protected:
  static std::vector<int> reversed(int size) {
    std::vector<int> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.rbegin(), ranks.rend(), 0);
    return ranks;
  }

  static void wait(std::vector<Completion>& open) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!open.empty()) {
      std::erase_if(open, [](Completion& completion) { return completion.poll(); });
      ASSERT_LT(std::chrono::steady_clock::now(), deadline)
          << open.size() << " operations are not complete after 60 s";
    }
  }

  Communicator world_ = Communicator::world();
  int members_ = world_.size();
  int own_index_ = members_ - 1 - world_.rank();
  MpiPointToPoint link_{world_, own_index_, reversed(members_),
                        message_limit(0, /*over_sockets=*/true)};
  MessageCrossGroup group_{link_, GetParam().options};
};

TEST_P(MpiCrossGroupTest, SeveralAtOnceAreTheSerialSums) {
  auto random = test::generator();  // equal on all ranks: each knows what the others have
  std::uint64_t sequence = CrossResources::kWindow - 6;
  const auto own = static_cast<std::size_t>(own_index_);
  for (int round = 0; round < 4; ++round) {
    std::vector<Bytes> staging;
    std::vector<Bytes> expected;
    std::vector<Completion> open;
    for (const std::size_t bytes : {0, 64, 4096, 4160, 100032, 1000000}) {
      std::vector<Bytes> inputs;
      for (int member = 0; member < members_; ++member) {
        inputs.push_back(test::random_values(DataType::float32, bytes, random));
      }
      staging.push_back(inputs[own]);
      expected.push_back(test::reduced(DataType::float32, ReduceOp::sum, inputs, {.post = 0.25}));
      staging.push_back(inputs[own]);
      expected.push_back(inputs[static_cast<std::size_t>(round % members_)]);
    }
    for (std::size_t i = 0; i < staging.size(); ++i) {
      open.push_back(i % 2 == 0 ? group_.allreduce({.scale = 0.25}, staging[i], sequence++)
                                : group_.broadcast(staging[i], round % members_, sequence++));
    }
    ASSERT_NO_FATAL_FAILURE(wait(open));
    for (std::size_t i = 0; i < staging.size(); ++i) {
      EXPECT_TRUE(staging[i] == expected[i])
          << "round " << round << ", operation " << i << " of " << staging[i].size() << " bytes";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, MpiCrossGroupTest,
                         testing::Values(Variant{"direct", {CrossAlgorithm::direct, 0}},
                                         Variant{"ring", {CrossAlgorithm::ring, 0}},
                                         Variant{"automatic", {}}),
                         [](const auto& parameters) { return std::string(parameters.param.name); });

/// An exchange, or (from every member to every member the same) an allreduce.
struct Step {
  bool is_exchange = true;
  std::vector<std::vector<Bytes>> parts;  ///< [from][to]
  std::vector<Bytes> got;                 ///< by sender
};

class MpiDirectExchangeTest : public testing::Test {
 protected:
  std::size_t at(int member) const { return static_cast<std::size_t>(member); }

  Step random_step(std::mt19937_64& random) {
    constexpr std::size_t kLengths[] = {0, 8, 64, 5000, 300000, 2000000};
    Step step;
    step.is_exchange = random() % 3 != 0;
    const std::size_t common = 8 * (1 + random() % 5000);
    for (int from = 0; from < members_; ++from) {
      auto& of_member = step.parts.emplace_back();
      for (int to = 0; to < members_; ++to) {
        const std::size_t bytes = step.is_exchange ? kLengths[random() % 6] : common;
        of_member.push_back(test::random_values(DataType::int64, bytes, random));
      }
    }
    for (int from = 0; from < members_; ++from) {
      step.got.emplace_back(step.parts[at(from)][at(own_index_)].size());
    }
    if (!step.is_exchange) step.got[0] = step.parts[at(own_index_)][0];
    return step;
  }

  Completion start(Step& step, std::uint64_t sequence) {
    if (!step.is_exchange) {
      return group_.allreduce({.type = DataType::int64}, step.got[0], sequence);
    }
    std::vector<std::span<const std::byte>> sends;
    std::vector<std::span<std::byte>> receives;
    for (int peer = 0; peer < members_; ++peer) {
      sends.emplace_back(step.parts[at(own_index_)][at(peer)]);
      receives.emplace_back(step.got[at(peer)]);
    }
    return group_.exchange(sends, receives, sequence);
  }

  void expect_right(const Step& step) {
    if (!step.is_exchange) {
      std::vector<Bytes> inputs;
      for (const auto& parts : step.parts) inputs.push_back(parts[0]);
      EXPECT_TRUE(step.got[0] == test::reduced(DataType::int64, ReduceOp::sum, inputs));
      return;
    }
    for (int from = 0; from < members_; ++from) {
      if (from == own_index_) continue;
      EXPECT_TRUE(step.got[at(from)] == step.parts[at(from)][at(own_index_)])
          << "from member " << from;
    }
  }

  Communicator world_ = Communicator::world();
  int members_ = world_.size();
  int own_index_ = world_.rank();
  std::vector<int> ranks_ = [this] {
    std::vector<int> ranks(at(members_));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }();
  MpiPointToPoint link_{world_, own_index_, ranks_, message_limit(0, /*over_sockets=*/true)};
  MessageCrossGroup group_{link_};
};

TEST_F(MpiDirectExchangeTest, SeveralAtOnceAmongAllreduces) {
  auto random = test::generator();  // equal on all ranks: each knows what the others give
  std::uint64_t sequence = CrossResources::kWindow - 6;
  for (int round = 0; round < 5; ++round) {
    std::deque<Step> steps;
    for (int i = 0; i < 6; ++i) steps.push_back(random_step(random));
    std::vector<Completion> open;
    for (Step& step : steps) open.push_back(start(step, sequence++));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!open.empty()) {
      std::erase_if(open, [](Completion& completion) { return completion.poll(); });
      ASSERT_LT(std::chrono::steady_clock::now(), deadline)
          << open.size() << " operations are not complete after 60 s";
    }
    for (const Step& step : steps) expect_right(step);
  }
}

}  // namespace

}  // namespace hora::internal
