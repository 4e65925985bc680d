// Operations between nodes on all members of a group, in one thread; and some that a failure ends:
// no message is written to their memory afterwards.
#include "ops/cross/cross_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"
#include "tests/support/message_network.h"
#include "tests/support/reference/elements.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using namespace test;

struct CrossOperation {
  std::optional<int> broadcast_root = {};  // else an allreduce, Adasum, or an exchange
  DataType type = DataType::float32;
  double scale = 1.0;
  std::vector<Bytes> inputs = {};  // of each member
  /// Parts of an exchange [from][to], in place of inputs.
  std::vector<std::vector<Bytes>> parts = {};
  bool is_adasum = false;
  std::vector<Range> tensors = {};  // of Adasum

  /// A member's staging in the end; for an exchange what has come, by sender.
  std::vector<Bytes> expected() const {
    if (broadcast_root) {
      return {inputs.size(), inputs[static_cast<std::size_t>(*broadcast_root)]};
    }
    if (parts.empty()) {
      return {inputs.size(), reduced(type, ReduceOp::sum, inputs, {.post = scale})};
    }
    std::vector<Bytes> all(parts.size());
    for (const auto& of_sender : parts) {
      for (std::size_t to = 0; to < parts.size(); ++to) {
        all[to].insert(all[to].end(), of_sender[to].begin(), of_sender[to].end());
      }
    }
    return all;
  }
};

/// Starts it on one member, whose staging this is.
Completion start(MessageCrossGroup& group, const CrossOperation& operation, std::size_t index,
                 Bytes& staging, std::uint64_t sequence) {
  if (operation.is_adasum) {
    return group.adasum(operation.type, staging, operation.tensors, sequence);
  }
  if (operation.parts.empty()) {
    return operation.broadcast_root
               ? group.broadcast(staging, *operation.broadcast_root, sequence)
               : group.allreduce({.type = operation.type, .scale = operation.scale}, staging,
                                 sequence);
  }
  std::vector<std::span<const std::byte>> sends;
  std::vector<std::span<std::byte>> receives;
  std::size_t offset = 0;
  for (std::size_t peer = 0; peer < operation.parts.size(); ++peer) {
    sends.emplace_back(operation.parts[index][peer]);
    const std::size_t bytes = operation.parts[peer][index].size();
    receives.push_back(std::span(staging).subspan(offset, bytes));
    offset += bytes;
  }
  return group.exchange(sends, receives, sequence);
}

/// All members of a group.
class CrossMembers {
 public:
  CrossMembers(int count, const CrossOptions& options, std::mt19937_64& random)
      : random_(random), network_(count, random()) {
    for (int index = 0; index < count; ++index) {
      members_.push_back(std::make_unique<Member>(network_.member(index), options));
    }
  }

  MessageNetwork& network() { return network_; }

  /// Runs the operations on every member, each member at its own pace and with up to `at_once`
  /// open; returns [operation][member] what is in the staging in the end.
  const std::vector<std::vector<Bytes>>& run(std::vector<CrossOperation> operations,
                                             std::size_t at_once,
                                             std::uint64_t first_sequence = 0) {
    begin(std::move(operations), first_sequence);
    std::size_t idle_steps = 0;
    while (!complete()) {
      idle_steps = step(at_once) ? 0 : idle_steps + 1;
      if (idle_steps > 1000 * members_.size() && !network_.deliver_one()) {
        throw std::logic_error("deadlock");
      }
    }
    EXPECT_EQ(network_.left_over(), 0U);
    return results_;
  }

  void begin(std::vector<CrossOperation> operations, std::uint64_t first_sequence = 0) {
    operations_ = std::move(operations);
    first_sequence_ = first_sequence;
    results_.clear();
    for (const CrossOperation& operation : operations_) {
      results_.push_back(operation.inputs);
      if (operation.parts.empty()) continue;
      for (const Bytes& received : operation.expected()) {
        results_.back().emplace_back(received.size());
      }
    }
    for (auto& member : members_) member->started = 0;
  }

  /// One random thing; true where something moved.
  bool step(std::size_t at_once) {
    if (random_() % 3 == 0) return network_.deliver_one();
    const std::size_t index = random_() % members_.size();
    Member& member = *members_[index];
    if (random_() % 2 == 0) {
      if (member.started == operations_.size() || member.open.size() >= at_once) return false;
      const std::size_t number = member.started++;
      member.open.push_back(start(member.group, operations_[number], index, results_[number][index],
                                  first_sequence_ + number));
      return true;
    }
    if (member.open.empty()) return false;
    const auto which = static_cast<std::ptrdiff_t>(random_() % member.open.size());
    const auto completion = member.open.begin() + which;
    if (!completion->poll()) return false;
    member.open.erase(completion);
    return true;
  }

  bool is_open(std::size_t index) const { return !members_[index]->open.empty(); }
  MemoryUse cancel(std::size_t index) {
    MemoryUse use = MemoryUse::none;
    for (Completion& completion : members_[index]->open) use = std::max(use, completion.cancel());
    return use;
  }
  const Bytes& staging(std::size_t index) const { return results_[0][index]; }

 private:
  struct Member {
    Member(PointToPoint& link, const CrossOptions& options) : group(link, options) {}
    MessageCrossGroup group;
    std::size_t started = 0;
    std::deque<Completion> open;
  };

  bool complete() const {
    return std::all_of(members_.begin(), members_.end(), [&](const auto& member) {
      return member->started == operations_.size() && member->open.empty();
    });
  }

  std::mt19937_64& random_;
  MessageNetwork network_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<CrossOperation> operations_;
  std::uint64_t first_sequence_ = 0;
  std::vector<std::vector<Bytes>> results_;
};

CrossOperation allreduce_of(int members, DataType type, std::size_t bytes, double scale,
                            std::mt19937_64& random) {
  CrossOperation operation{.type = type, .scale = scale};
  for (int member = 0; member < members; ++member) {
    operation.inputs.push_back(random_values(type, bytes, random));
  }
  return operation;
}

/// Many give one another nothing; nobody gives itself anything.
CrossOperation exchange_of(int members, std::mt19937_64& random) {
  CrossOperation operation;
  for (int from = 0; from < members; ++from) {
    auto& parts = operation.parts.emplace_back();
    for (int to = 0; to < members; ++to) {
      const std::size_t bytes = from == to || random() % 3 == 0 ? 0 : random() % 300;
      parts.push_back(random_values(DataType::uint8, bytes, random));
    }
  }
  return operation;
}

void expect_results(const std::vector<CrossOperation>& operations,
                    const std::vector<std::vector<Bytes>>& results) {
  for (std::size_t number = 0; number < operations.size(); ++number) {
    const std::vector<Bytes> expected = operations[number].expected();
    for (std::size_t member = 0; member < results[number].size(); ++member) {
      ASSERT_TRUE(results[number][member] == expected[member])
          << "operation " << number << " of " << expected[member].size() << " bytes of "
          << name_of(operations[number].type) << ", scale " << operations[number].scale
          << (operations[number].broadcast_root ? ", a broadcast" : "") << ", member " << member;
    }
  }
}

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
  auto random = generator();
  std::vector<CrossOperation> operations;
  // Bytes: none, one cache line, less than a line for each member, odd numbers of lines, a rest.
  for (const std::size_t bytes : {0, 8, 64, 128, 320, 448, 576, 3 * 320 + 40, 7 * 448, 12344}) {
    for (const DataType type : kAllTypes) {
      const double scale = random() % 2 == 0 ? 1.0 : 1.0 / members();
      operations.push_back(allreduce_of(members(), type, bytes, scale, random));
    }
  }
  CrossMembers group(members(), options(), random);
  expect_results(operations, group.run(operations, 1));
}

TEST_P(CrossGroupTest, ManyAtOnceDoNotMix) {
  auto random = generator();
  CrossMembers group(members(), options(), random);
  std::uint64_t sequence = CrossResources::kWindow - 20;  // tags wrap on the way
  for (int round = 0; round < 3; ++round) {
    std::vector<CrossOperation> operations;
    for (int number = 0; number < 30; ++number) {
      const std::size_t lines = random() % 20 == 0 ? 4000 : 40;
      const std::size_t bytes = random() % lines * 64 + random() % 2 * 8;
      operations.push_back(allreduce_of(members(), kAllTypes[random() % std::size(kAllTypes)],
                                        bytes, random() % 2 == 0 ? 1.0 : 0.25, random));
      if (random() % 4 == 0) {
        operations.back().broadcast_root =
            static_cast<int>(random() % static_cast<std::uint64_t>(members()));
      } else if (random() % 4 == 0) {
        operations.back() = exchange_of(members(), random);
      }
    }
    expect_results(operations, group.run(operations, 1 + random() % 8, sequence));
    sequence += operations.size();
  }
}

INSTANTIATE_TEST_SUITE_P(Algorithms, CrossGroupTest,
                         testing::Combine(testing::ValuesIn(kAlgorithms), testing::Range(1, 10)),
                         [](const auto& parameters) {
                           const std::string name = std::get<0>(parameters.param).name;
                           return name + "_" + std::to_string(std::get<1>(parameters.param));
                         });

/// An algorithm that no branch chooses would be the direct one, and give the same bits.
TEST(CrossGroup, EachAlgorithmSendsMessagesOfItsOwn) {
  auto random = generator();
  std::set<std::multiset<MessageNetwork::Message>> seen;
  for (const Algorithm& algorithm : kAlgorithms) {
    CrossMembers group(5, algorithm.options, random);
    group.run({allreduce_of(5, DataType::float32, 200'000, 1.0, random)}, 1);
    const bool is_mixed = algorithm.options.small_message == 512;  // what is above is another's
    EXPECT_NE(seen.insert(group.network().sent()).second, is_mixed) << algorithm.name;
  }
}

TEST(CrossGroup, RefusesALengthThatIsNoneAndATagThatIsInUse) {
  auto random = generator();
  MessageNetwork network(2, random());
  MessageCrossGroup group(network.member(0));
  alignas(64) std::byte first[64] = {};
  alignas(64) std::byte second[64] = {};
  EXPECT_THROW(group.allreduce({}, {first, 63}, 0), Error);
  const Completion open = group.allreduce({}, first, 5);
  expect_error(ErrorCode::invalid_use, testing::HasSubstr("operation 4101"),
               [&] { group.allreduce({}, second, 5 + CrossResources::kWindow); });
}

void withdraw_among(int count) {
  auto random = generator(static_cast<std::uint64_t>(count));
  int waited = 0, cancelled = 0;
  for (int round = 0; round < 400; ++round) {
    // A broadcast, a short allreduce, a long one, an exchange.
    CrossOperation operation =
        round % 4 == 3
            ? exchange_of(count, random)
            : allreduce_of(count, DataType::uint8, round % 4 == 2 ? 8192 : 640, 1.0, random);
    if (round % 4 == 0) {
      operation.broadcast_root = static_cast<int>(random() % static_cast<std::uint64_t>(count));
    }
    CrossMembers group(count, {}, random);
    group.begin({operation});
    for (std::uint64_t steps = random() % 40; steps > 0; --steps) group.step(1);
    std::vector<Bytes> left;
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      MemoryUse use = group.cancel(i);
      (use == MemoryUse::writes ? waited : cancelled) += group.is_open(i) ? 1 : 0;
      while (use == MemoryUse::writes) {
        ASSERT_TRUE(group.network().deliver_one()) << "waits for a message that has not been sent";
        use = group.cancel(i);
      }
      left.push_back(group.staging(i));
    }
    while (group.network().deliver_one()) {
    }
    for (std::size_t i = 0; i < left.size(); ++i) {
      EXPECT_NE(group.cancel(i), MemoryUse::writes);
      ASSERT_TRUE(group.staging(i) == left[i]) << "member " << i << " of " << count;
    }
  }
  EXPECT_GT(waited, 10);
  EXPECT_GT(cancelled, 10);
}

TEST(CrossGroup, NothingArrivesAnyMoreInWhatIsWithdrawn) {
  for (const int count : {2, 3, 4, 7}) withdraw_among(count);
}

/// Adasum of tensors in one staging, each from a multiple of 64 bytes on, as in a unit. Random
/// vectors of members, of a kind whose factors are not near their poles: well inside one quadrant,
/// or long and of random directions. Tensors of different magnitude.
CrossOperation adasum_operation(int members, DataType type, const std::vector<std::size_t>& counts,
                                std::mt19937_64& random) {
  CrossOperation operation{.type = type, .is_adasum = true};
  std::size_t bytes = 0;
  for (const std::size_t count : counts) {
    operation.tensors.push_back({bytes, count * size_of(type)});
    bytes += align_up(operation.tensors.back().bytes);
  }
  for (int member = 0; member < members; ++member) {
    Bytes& staging = operation.inputs.emplace_back(bytes, std::byte{0x3c});
    for (std::size_t t = 0; t < counts.size(); ++t) {
      const double scale = std::exp2(-static_cast<double>(t % 4));
      std::uniform_real_distribution<double> uniform((counts[t] < 64 ? 0.5 : -1) * scale, scale);
      Numbers numbers(counts[t]);
      for (double& number : numbers) number = uniform(random);
      std::ranges::copy(to_bytes(type, numbers), staging.data() + operation.tensors[t].begin);
    }
  }
  return operation;
}

/// The same on all members, and each element within what each level rounds: three operations on at
/// most the sum of the magnitudes, and once to the type. The tensors' errors go on through the
/// factors.
void expect_close(const CrossOperation& operation, const std::vector<Bytes>& results) {
  EXPECT_THAT(results, testing::Each(results[0]));
  const auto levels = static_cast<double>(std::bit_width(results.size() - 1));  // of the tree
  for (std::size_t t = 0; t < operation.tensors.size(); ++t) {
    const auto numbers_in = [&](const Bytes& staging) {
      const std::byte* const begin = staging.data() + operation.tensors[t].begin;
      return to_numbers(operation.type, {begin, begin + operation.tensors[t].bytes});
    };
    std::vector<Numbers> vectors;
    double largest = 0;
    for (const Bytes& input : operation.inputs) {
      vectors.push_back(numbers_in(input));
      double of_member = 0;
      for (const double value : vectors.back()) of_member = std::fmax(of_member, std::fabs(value));
      largest += of_member;
    }
    const double bound = 4 * levels * unit_roundoff(operation.type) * largest;
    EXPECT_THAT(numbers_in(results[0]),
                testing::Pointwise(testing::DoubleNear(bound), adasum_of(vectors)))
        << name_of(operation.type) << ", tensor " << t << ", " << results.size() << " members";
  }
}

TEST(AdasumAllreduce, IsTheSerialModelsAndTheSameEverywhereAndOthersAtOnceChangeNoBit) {
  auto random = generator();
  for (int members = 1; members < 10; ++members) {
    CrossMembers group(members, {}, random);
    std::vector<CrossOperation> operations;
    for (const DataType type : kFloatTypes) {
      operations.push_back(
          adasum_operation(members, type, {1, 0, 333, 5, 64, 1000, 0, 17}, random));
      expect_close(operations.back(),
                   group.run({operations.back()}, 1, CrossResources::kWindow - 1)[0]);
    }
    for (int number = 0; number < 8; ++number) {
      std::vector<std::size_t> counts;
      for (std::size_t t = random() % 4; t > 0; --t) counts.push_back(random() % 200);
      operations.push_back(adasum_operation(members, kFloatTypes[random() % 4], counts, random));
    }
    std::ranges::shuffle(operations, random);
    const auto together = group.run(operations, operations.size(), CrossResources::kWindow - 1);
    for (std::size_t number = 0; number < operations.size(); ++number) {
      EXPECT_EQ(group.run({operations[number]}, 1)[0], together[number]) << number;
    }
  }
}

}  // namespace
}  // namespace hora::internal
