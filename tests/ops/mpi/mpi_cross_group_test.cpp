// MessageCrossGroup over MpiPointToPoint on real ranks.
#include <gtest/gtest.h>

#include <chrono>
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

}  // namespace
}  // namespace hora::internal
