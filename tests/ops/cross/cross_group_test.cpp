#include "ops/cross/cross_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <hora/settings.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/ops/cross/cross_members.h"
#include "tests/ops/cross/slow_space.h"
#include "tests/support/expect_error.h"
#include "tests/support/reference/elements.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::allreduce_of;
using test::Bytes;
using test::CrossMembers;
using test::CrossOperation;
using test::expect_results;
using test::MessageNetwork;

struct Algorithm {
  const char* name;
  CrossOptions options;
};

constexpr std::size_t kAllSmall = std::size_t{1} << 30;
constexpr Algorithm kAlgorithms[] = {{"direct", {CrossAlgorithm::direct, 0}},
                                     {"ring", {CrossAlgorithm::ring, 0}},
                                     {"dissemination", {CrossAlgorithm::direct, kAllSmall}},
                                     {"mixed", {CrossAlgorithm::automatic, 512}},
                                     {"mixed_ring", {CrossAlgorithm::ring, 512}}};

// Algorithm, members.
class CrossGroupTest : public testing::TestWithParam<std::tuple<Algorithm, int>> {
 protected:
  const CrossOptions& options() const { return std::get<0>(GetParam()).options; }
  int members() const { return std::get<1>(GetParam()); }
};

TEST_P(CrossGroupTest, EveryTypeAndLengthIsTheSerialSum) {
  auto random = test::generator();
  std::vector<CrossOperation> operations;
  // Bytes: none, one cache line, less than a line for each member, odd numbers of lines, a rest.
  for (const std::size_t bytes : {0, 8, 64, 128, 320, 448, 576, 3 * 320 + 40, 7 * 448, 12344}) {
    for (const DataType type : test::kAllTypes) {
      const double scale = random() % 2 == 0 ? 1.0 : 1.0 / members();
      operations.push_back(allreduce_of(members(), type, bytes, scale, random));
    }
  }
  CrossMembers group(members(), options(), random);
  expect_results(operations, group.run(operations, 1));
}

TEST_P(CrossGroupTest, ManyAtOnceDoNotMix) {
  auto random = test::generator();
  CrossMembers group(members(), options(), random);
  std::uint64_t sequence = CrossResources::kWindow - 20;  // tags wrap on the way
  for (int round = 0; round < 3; ++round) {
    std::vector<CrossOperation> operations;
    for (int number = 0; number < 30; ++number) {
      const std::size_t bytes = random() % 40 * 64 + random() % 2 * 8;
      operations.push_back(allreduce_of(members(),
                                        test::kAllTypes[random() % std::size(test::kAllTypes)],
                                        bytes, random() % 2 == 0 ? 1.0 : 0.25, random));
      if (random() % 4 == 0) {
        operations.back().broadcast_root =
            static_cast<int>(random() % static_cast<std::uint64_t>(members()));
      }
    }
    expect_results(operations, group.run(operations, 1 + random() % 8, sequence));
    sequence += operations.size();
  }
}

TEST_P(CrossGroupTest, BroadcastFromEveryRoot) {
  auto random = test::generator();
  std::vector<CrossOperation> operations;
  for (int root = 0; root < members(); ++root) {
    for (const std::size_t bytes : {0, 1, 64, 1000}) {
      operations.push_back(allreduce_of(members(), DataType::uint8, bytes, 1.0, random));
      operations.back().broadcast_root = root;
    }
  }
  CrossMembers group(members(), options(), random);
  expect_results(operations, group.run(operations, 4));
}

TEST_P(CrossGroupTest, SumsMayTakeAWhileAndReservedMemoryIsEnough) {
  auto random = test::generator();
  constexpr std::size_t kAtOnce = 5, kMost = 40 * 64;
  std::vector<CrossOperation> operations;
  for (int number = 0; number < 40; ++number) {
    const std::size_t bytes = number == 0 ? kMost : random() % (kMost / 8 + 1) * 8;
    operations.push_back(allreduce_of(members(),
                                      test::kAllTypes[random() % std::size(test::kAllTypes)], bytes,
                                      random() % 2 == 0 ? 1.0 : 0.3, random));
  }
  test::SlowSpace space(random);
  CrossMembers group(members(), options(), random, space);
  group.reserve(kAtOnce, kMost);
  const int reserved = space.allocations();
  expect_results(operations, group.run(operations, kAtOnce));
  EXPECT_EQ(space.allocations(), reserved);
}

INSTANTIATE_TEST_SUITE_P(Algorithms, CrossGroupTest,
                         testing::Combine(testing::ValuesIn(kAlgorithms), testing::Range(1, 10)),
                         [](const auto& parameters) {
                           const std::string name = std::get<0>(parameters.param).name;
                           return name + "_" + std::to_string(std::get<1>(parameters.param));
                         });

/// Of "a, b or c".
std::vector<std::string> choices_in(std::string allowed) {
  if (const auto last = allowed.find(" or "); last != allowed.npos) allowed.replace(last, 4, ", ");
  std::vector<std::string> choices;
  for (std::size_t begin = 0; begin < allowed.size();) {
    const std::size_t end = std::min(allowed.find(", ", begin), allowed.size());
    choices.push_back(allowed.substr(begin, end - begin));
    begin = end + 2;
  }
  return choices;
}

TEST(CrossGroup, EveryChoiceOfTheSettingIsTested) {
  const auto rows = setting_descriptions();
  const auto row = std::ranges::find(rows, "HORA_CROSS_ALGORITHM", &SettingDescription::variable);
  ASSERT_NE(row, rows.end());
  const std::vector<std::string> choices = choices_in(std::string(row->allowed));
  EXPECT_GT(choices.size(), 1u) << row->allowed;
  for (const std::string& choice : choices) {
    const SettingAssignment assignment{"HORA_CROSS_ALGORITHM", choice};
    const CrossOptions chosen = cross_options(parse_settings({&assignment, 1}));
    EXPECT_TRUE(std::ranges::any_of(kAlgorithms, [&](const Algorithm& tested) {
      return tested.options.algorithm == chosen.algorithm;
    })) << choice;
  }
}

/// An algorithm that no branch chooses would be the direct one, and give the same bits.
TEST(CrossGroup, EachAlgorithmSendsMessagesOfItsOwn) {
  auto random = test::generator();
  std::set<std::multiset<MessageNetwork::Message>> seen;
  for (const Algorithm& algorithm : kAlgorithms) {
    CrossMembers group(5, algorithm.options, random);
    group.run({allreduce_of(5, DataType::float32, 200'000, 1.0, random)}, 1);
    const bool is_mixed = algorithm.options.small_message == 512;  // what is above is another's
    EXPECT_NE(seen.insert(group.network().sent()).second, is_mixed) << algorithm.name;
  }
}

/// One list of values as a whole, and cut at random places, over algorithms and lengths.
TEST(CrossGroup, BitsDoNotDependOnFusionNorOnTheAlgorithm) {
  auto random = test::generator();
  for (int members = 1; members <= 9; ++members) {
    const DataType type = test::kAllTypes[random() % std::size(test::kAllTypes)];
    const CrossOperation whole =
        allreduce_of(members, type, 200'000 + random() % 999 * 8, 0.3, random);
    const Bytes expected = whole.expected();
    for (const auto& [name, options] : kAlgorithms) {
      std::vector<CrossOperation> pieces;
      for (std::size_t begin = 0; begin < expected.size();) {
        const std::size_t bytes =
            std::min((random() % 2 == 0 ? random() % 80 : random() % 20'000) * 8 + 8,
                     expected.size() - begin);
        CrossOperation& piece = pieces.emplace_back(whole);
        for (Bytes& input : piece.inputs) {
          const auto first = input.begin() + static_cast<std::ptrdiff_t>(begin);
          input = Bytes(first, first + static_cast<std::ptrdiff_t>(bytes));
        }
        begin += bytes;
      }
      CrossMembers group(members, options, random);
      const auto fused = group.run({whole}, 1);
      const auto apart = group.run(pieces, 3);
      for (std::size_t member = 0; member < fused[0].size(); ++member) {
        EXPECT_TRUE(fused[0][member] == expected)
            << name << ", " << members << " members, member " << member;
        Bytes joined;
        for (const auto& piece : apart) {
          joined.insert(joined.end(), piece[member].begin(), piece[member].end());
        }
        EXPECT_TRUE(joined == expected) << name << ", " << members << " members, member " << member;
      }
    }
  }
}

TEST(CrossGroup, RefusesWhatCannotBeRight) {
  auto random = test::generator();
  MessageNetwork network(2, random());
  MessageCrossGroup group(network.member(0));
  alignas(64) std::byte staging[64] = {};
  EXPECT_THROW(group.allreduce({}, {staging, 63}, 0), Error);
  EXPECT_THROW(group.broadcast({staging, 64}, 2, 0), Error);
  EXPECT_THROW(group.broadcast({staging, 64}, -1, 0), Error);
}

TEST(CrossGroup, RefusesATagThatIsInUse) {
  auto random = test::generator();
  MessageNetwork network(2, random());
  MessageCrossGroup group(network.member(0));
  alignas(64) std::byte first[64] = {};
  alignas(64) std::byte second[64] = {};
  const Completion open = group.allreduce({}, first, 5);
  test::expect_error(ErrorCode::invalid_use, testing::HasSubstr("operation 4101"),
                     [&] { group.allreduce({}, second, 5 + CrossResources::kWindow); });
}

}  // namespace
}  // namespace hora::internal
