#include "ops/mpi/cross_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "tests/ops/mpi/cross_model.h"
#include "tests/ops/mpi/fake_network.h"
#include "tests/ops/mpi/slow_space.h"
#include "tests/support/seed.h"

namespace hora {
namespace {

using test::Bytes;
using test::FakeNetwork;

struct Operation {
  std::optional<int> broadcast_root;  // else an allreduce
  DataType type = DataType::float32;
  double scale = 1.0;
  std::vector<Bytes> inputs;  // of each member

  Bytes expected(const CrossOptions& options) const {
    if (broadcast_root) {
      return inputs[static_cast<std::size_t>(*broadcast_root)];
    }
    const bool ring = options.algorithm == CrossAlgorithm::ring && inputs.size() > 1 &&
                      inputs.front().size() > options.small_message;
    return ring ? test::sum_around_ring(type, inputs, scale)
                : test::sum_in_order(type, inputs, scale);
  }
};

// All members of a group, in this thread.
class Members {
 public:
  Members(int count, const CrossOptions& options, std::mt19937_64& random,
          StagingSpace& space = host_space())
      : random_(random), network_(count, random) {
    for (int index = 0; index < count; ++index) {
      members_.push_back(std::make_unique<Member>(network_.member(index), options, space));
    }
  }

  void reserve(std::size_t operations, std::size_t staging_bytes) {
    for (auto& member : members_) member->group.reserve(operations, staging_bytes);
  }

  // Runs the operations on every member, each member at its own pace and with up to `at_once` open;
  // returns [operation][member] what is in the staging in the end.
  std::vector<std::vector<Bytes>> run(const std::vector<Operation>& operations, std::size_t at_once,
                                      std::uint64_t first_sequence = 0) {
    results_.clear();
    for (const Operation& operation : operations) {
      results_.push_back(operation.inputs);
    }
    for (auto& member : members_) {
      member->started = 0;
    }
    std::size_t idle_steps = 0;
    while (!complete(operations.size())) {
      const bool moved = step(operations, at_once, first_sequence);
      idle_steps = moved ? 0 : idle_steps + 1;
      if (idle_steps > 1000 * members_.size() && !network_.deliver_one()) {
        throw std::logic_error("deadlock");
      }
    }
    EXPECT_EQ(network_.left_over(), 0U);
    return results_;
  }

 private:
  struct Member {
    Member(PointToPoint& link, const CrossOptions& options, StagingSpace& space)
        : group(link, options, space) {}
    MessageCrossGroup group;
    std::size_t started = 0;
    std::deque<Completion> open;
  };

  bool complete(std::size_t operations) const {
    return std::all_of(members_.begin(), members_.end(), [&](const auto& member) {
      return member->started == operations && member->open.empty();
    });
  }

  // One random thing; true where something moved.
  bool step(const std::vector<Operation>& operations, std::size_t at_once,
            std::uint64_t first_sequence) {
    if (random_() % 3 == 0) {
      return network_.deliver_one();
    }
    const std::size_t index = random_() % members_.size();
    Member& member = *members_[index];
    if (random_() % 2 == 0) {
      if (member.started == operations.size() || member.open.size() >= at_once) {
        return false;
      }
      const std::size_t number = member.started++;
      member.open.push_back(start(member.group, operations[number], results_[number][index],
                                  first_sequence + number));
      return true;
    }
    if (member.open.empty()) {
      return false;
    }
    const auto which = static_cast<std::ptrdiff_t>(random_() % member.open.size());
    const auto completion = member.open.begin() + which;
    if (!completion->poll()) {
      return false;
    }
    member.open.erase(completion);
    return true;
  }

  static Completion start(MessageCrossGroup& group, const Operation& operation, Bytes& staging,
                          std::uint64_t sequence) {
    return operation.broadcast_root
               ? group.broadcast(staging, *operation.broadcast_root, sequence)
               : group.allreduce({.type = operation.type, .scale = operation.scale}, staging,
                                 sequence);
  }

  std::mt19937_64& random_;
  FakeNetwork network_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::vector<Bytes>> results_;
};

Operation allreduce_of(int members, DataType type, std::size_t bytes, double scale,
                       std::mt19937_64& random) {
  Operation operation{std::nullopt, type, scale, {}};
  for (int member = 0; member < members; ++member) {
    operation.inputs.push_back(test::random_values(type, bytes, random));
  }
  return operation;
}

void expect_results(const std::vector<Operation>& operations,
                    const std::vector<std::vector<Bytes>>& results, const CrossOptions& options) {
  for (std::size_t number = 0; number < operations.size(); ++number) {
    const Bytes expected = operations[number].expected(options);
    for (std::size_t member = 0; member < results[number].size(); ++member) {
      ASSERT_TRUE(results[number][member] == expected)
          << "operation " << number << " of " << expected.size() << " bytes of "
          << name_of(operations[number].type) << ", scale " << operations[number].scale
          << (operations[number].broadcast_root ? ", a broadcast" : "") << ", member " << member;
    }
  }
}

constexpr DataType kTypes[] = {
    DataType::float16, DataType::bfloat16, DataType::float32, DataType::float64, DataType::int32,
    DataType::int64,   DataType::uint8,    DataType::int8,    DataType::int16,   DataType::boolean};

// Algorithm, members.
class CrossGroupTest : public testing::TestWithParam<std::tuple<CrossOptions, int>> {
 protected:
  const CrossOptions& options() const { return std::get<0>(GetParam()); }
  int members() const { return std::get<1>(GetParam()); }
};

TEST_P(CrossGroupTest, EveryTypeAndLengthIsTheSerialSum) {
  auto random = test::generator();
  std::vector<Operation> operations;
  // Bytes: none, one cache line, less than a line for each member, odd numbers of lines, a rest.
  for (const std::size_t bytes : {0, 8, 64, 128, 320, 448, 576, 3 * 320 + 40, 7 * 448, 12344}) {
    for (const DataType type : kTypes) {
      const double scale = random() % 2 == 0 ? 1.0 : 1.0 / members();
      operations.push_back(allreduce_of(members(), type, bytes, scale, random));
    }
  }
  Members group(members(), options(), random);
  expect_results(operations, group.run(operations, 1), options());
}

TEST_P(CrossGroupTest, ManyAtOnceDoNotMix) {
  auto random = test::generator();
  Members group(members(), options(), random);
  std::uint64_t sequence = CrossResources::kWindow - 20;  // tags wrap on the way
  for (int round = 0; round < 3; ++round) {
    std::vector<Operation> operations;
    for (int number = 0; number < 30; ++number) {
      const std::size_t bytes = random() % 40 * 64 + random() % 2 * 8;
      operations.push_back(allreduce_of(members(), kTypes[random() % std::size(kTypes)], bytes,
                                        random() % 2 == 0 ? 1.0 : 0.25, random));
      if (random() % 4 == 0) {
        operations.back().broadcast_root =
            static_cast<int>(random() % static_cast<std::uint64_t>(members()));
      }
    }
    expect_results(operations, group.run(operations, 1 + random() % 8, sequence), options());
    sequence += operations.size();
  }
}

TEST_P(CrossGroupTest, BroadcastFromEveryRoot) {
  auto random = test::generator();
  std::vector<Operation> operations;
  for (int root = 0; root < members(); ++root) {
    for (const std::size_t bytes : {0, 1, 64, 1000}) {
      operations.push_back(allreduce_of(members(), DataType::uint8, bytes, 1.0, random));
      operations.back().broadcast_root = root;
    }
  }
  Members group(members(), options(), random);
  expect_results(operations, group.run(operations, 4), options());
}

constexpr CrossOptions kDirect{CrossAlgorithm::direct, 0};
constexpr CrossOptions kRing{CrossAlgorithm::ring, 0};
constexpr CrossOptions kDissemination{CrossAlgorithm::direct, std::size_t{1} << 30};
constexpr CrossOptions kMixed{CrossAlgorithm::automatic, 512};

TEST_P(CrossGroupTest, SumsMayTakeAWhileAndReservedMemoryIsEnough) {
  auto random = test::generator();
  constexpr std::size_t kAtOnce = 5, kMost = 40 * 64;
  std::vector<Operation> operations;
  for (int number = 0; number < 40; ++number) {
    const std::size_t bytes = number == 0 ? kMost : random() % (kMost / 8 + 1) * 8;
    operations.push_back(allreduce_of(members(), kTypes[random() % std::size(kTypes)], bytes,
                                      random() % 2 == 0 ? 1.0 : 0.3, random));
  }
  test::SlowSpace space(random);
  Members group(members(), options(), random, space);
  group.reserve(kAtOnce, kMost);
  const int reserved = space.allocations();
  expect_results(operations, group.run(operations, kAtOnce), options());
  EXPECT_EQ(space.allocations(), reserved);
}

INSTANTIATE_TEST_SUITE_P(Algorithms, CrossGroupTest,
                         testing::Combine(testing::Values(kDirect, kRing, kDissemination, kMixed),
                                          testing::Range(1, 10)),
                         [](const auto& parameters) {
                           const CrossOptions& options = std::get<0>(parameters.param);
                           const std::string name =
                               options.algorithm == CrossAlgorithm::ring ? "ring"
                               : options.small_message == 0              ? "direct"
                               : options.small_message == 512            ? "mixed"
                                                                         : "dissemination";
                           return name + "_" + std::to_string(std::get<1>(parameters.param));
                         });

TEST(CrossGroup, BitsDoNotDependOnFusion) {
  auto random = test::generator();
  for (int members = 1; members <= 9; ++members) {
    const Operation whole = allreduce_of(members, DataType::float32, 4096, 0.3, random);
    // The same values as one operation (direct) and in pieces (dissemination).
    Operation pieces[2] = {whole, whole};
    for (int member = 0; member < members; ++member) {
      const Bytes& input = whole.inputs[static_cast<std::size_t>(member)];
      pieces[0].inputs[static_cast<std::size_t>(member)].assign(input.begin(), input.begin() + 320);
      pieces[1].inputs[static_cast<std::size_t>(member)].assign(input.begin() + 320, input.end());
    }
    Members direct(members, {CrossAlgorithm::direct, 0}, random);
    Members split(members, {CrossAlgorithm::direct, 320}, random);
    const auto fused = direct.run({whole}, 1);
    auto apart = split.run({pieces[0], pieces[1]}, 2);
    for (std::size_t member = 0; member < fused[0].size(); ++member) {
      Bytes joined = apart[0][member];
      joined.insert(joined.end(), apart[1][member].begin(), apart[1][member].end());
      EXPECT_TRUE(joined == fused[0][member]) << members << " members, member " << member;
    }
  }
}

TEST(CrossGroup, RefusesWhatCannotBeRight) {
  auto random = test::generator();
  FakeNetwork network(2, random);
  MessageCrossGroup group(network.member(0));
  alignas(64) std::byte staging[64] = {};
  EXPECT_THROW(group.allreduce({}, {staging, 63}, 0), Error);
  EXPECT_THROW(group.broadcast({staging, 64}, 2, 0), Error);
  EXPECT_THROW(group.broadcast({staging, 64}, -1, 0), Error);
}

TEST(CrossGroup, RefusesATagThatIsInUse) {
  auto random = test::generator();
  FakeNetwork network(2, random);
  MessageCrossGroup group(network.member(0));
  alignas(64) std::byte first[64] = {};
  alignas(64) std::byte second[64] = {};
  const Completion open = group.allreduce({}, first, 5);
  try {
    group.allreduce({}, second, 5 + CrossResources::kWindow);
    FAIL() << "two operations with the same tags were started";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_use);
    EXPECT_THAT(error.what(), testing::HasSubstr("operation 4101"));
  }
}

}  // namespace
}  // namespace hora
