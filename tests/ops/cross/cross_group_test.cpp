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
  std::optional<int> broadcast_root;  // else an allreduce, or an exchange
  DataType type = DataType::float32;
  double scale = 1.0;
  std::vector<Bytes> inputs;  // of each member
  /// Parts of an exchange [from][to], in place of inputs.
  std::vector<std::vector<Bytes>> parts = {};

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

  const MessageNetwork& network() const { return network_; }

  /// Runs the operations on every member, each member at its own pace and with up to `at_once`
  /// open; returns [operation][member] what is in the staging in the end.
  std::vector<std::vector<Bytes>> run(const std::vector<CrossOperation>& operations,
                                      std::size_t at_once, std::uint64_t first_sequence = 0) {
    results_.clear();
    for (const CrossOperation& operation : operations) {
      results_.push_back(operation.inputs);
      if (operation.parts.empty()) continue;
      for (const Bytes& received : operation.expected()) {
        results_.back().emplace_back(received.size());
      }
    }
    for (auto& member : members_) member->started = 0;
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
    Member(PointToPoint& link, const CrossOptions& options) : group(link, options) {}
    MessageCrossGroup group;
    std::size_t started = 0;
    std::deque<Completion> open;
  };

  bool complete(std::size_t operations) const {
    return std::all_of(members_.begin(), members_.end(), [&](const auto& member) {
      return member->started == operations && member->open.empty();
    });
  }

  /// One random thing; true where something moved.
  bool step(const std::vector<CrossOperation>& operations, std::size_t at_once,
            std::uint64_t first_sequence) {
    if (random_() % 3 == 0) return network_.deliver_one();
    const std::size_t index = random_() % members_.size();
    Member& member = *members_[index];
    if (random_() % 2 == 0) {
      if (member.started == operations.size() || member.open.size() >= at_once) return false;
      const std::size_t number = member.started++;
      member.open.push_back(start(member.group, operations[number], index, results_[number][index],
                                  first_sequence + number));
      return true;
    }
    if (member.open.empty()) return false;
    const auto which = static_cast<std::ptrdiff_t>(random_() % member.open.size());
    const auto completion = member.open.begin() + which;
    if (!completion->poll()) return false;
    member.open.erase(completion);
    return true;
  }

  std::mt19937_64& random_;
  MessageNetwork network_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::vector<Bytes>> results_;
};

CrossOperation allreduce_of(int members, DataType type, std::size_t bytes, double scale,
                            std::mt19937_64& random) {
  CrossOperation operation{std::nullopt, type, scale, {}};
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
      const std::size_t bytes = random() % 40 * 64 + random() % 2 * 8;
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

/// One list of values as a whole, and cut at random places, over algorithms and lengths.
TEST(CrossGroup, BitsDoNotDependOnFusionNorOnTheAlgorithm) {
  auto random = generator();
  for (int members = 1; members <= 9; ++members) {
    const DataType type = kAllTypes[random() % std::size(kAllTypes)];
    const CrossOperation whole =
        allreduce_of(members, type, 200'000 + random() % 999 * 8, 0.3, random);
    const Bytes expected = whole.expected()[0];
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
  auto random = generator();
  MessageNetwork network(2, random());
  MessageCrossGroup group(network.member(0));
  alignas(64) std::byte staging[64] = {};
  EXPECT_THROW(group.allreduce({}, {staging, 63}, 0), Error);
}

TEST(CrossGroup, RefusesATagThatIsInUse) {
  auto random = generator();
  MessageNetwork network(2, random());
  MessageCrossGroup group(network.member(0));
  alignas(64) std::byte first[64] = {};
  alignas(64) std::byte second[64] = {};
  const Completion open = group.allreduce({}, first, 5);
  expect_error(ErrorCode::invalid_use, testing::HasSubstr("operation 4101"),
               [&] { group.allreduce({}, second, 5 + CrossResources::kWindow); });
}

struct WithdrawingMember {
  WithdrawingMember(PointToPoint& link, Bytes staging) : group(link), memory(std::move(staging)) {}

  void poll() {
    std::erase_if(open, [](Completion& completion) { return completion.poll(); });
  }
  MemoryUse cancel() {
    MemoryUse use = MemoryUse::none;
    for (Completion& completion : open) use = std::max(use, completion.cancel());
    return use;
  }

  MessageCrossGroup group;
  Bytes memory;
  std::vector<Completion> open;
};

class WithdrawnAmong : public testing::TestWithParam<int> {};

TEST_P(WithdrawnAmong, NothingArrivesAnyMore) {
  const int count = GetParam();
  auto random = generator();
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
    const auto stagings = operation.parts.empty() ? operation.inputs : operation.expected();
    MessageNetwork network(count, random());
    std::vector<std::unique_ptr<WithdrawingMember>> members;
    for (std::size_t i = 0; i < stagings.size(); ++i) {
      WithdrawingMember& own = *members.emplace_back(std::make_unique<WithdrawingMember>(
          network.member(static_cast<int>(i)),
          operation.parts.empty() ? stagings[i] : Bytes(stagings[i].size())));
      if (random() % 4 > 0) own.open.push_back(start(own.group, operation, i, own.memory, 0));
    }
    for (std::uint64_t steps = random() % 20; steps > 0; --steps) {
      random() % 2 == 0 ? static_cast<void>(network.deliver_one())
                        : members[random() % members.size()]->poll();
    }
    std::vector<Bytes> left;
    for (auto& member : members) {
      const bool is_open = !member->open.empty();
      MemoryUse use = member->cancel();
      (use == MemoryUse::writes ? waited : cancelled) += is_open ? 1 : 0;
      while (use == MemoryUse::writes) {
        ASSERT_TRUE(network.deliver_one()) << "waits for a message that has not been sent";
        use = member->cancel();
      }
      left.push_back(member->memory);
    }
    while (network.deliver_one()) {
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      EXPECT_NE(members[i]->cancel(), MemoryUse::writes);
      ASSERT_TRUE(members[i]->memory == left[i]) << "member " << i;
    }
  }
  EXPECT_GT(waited, 10);
  EXPECT_GT(cancelled, 10);
}

INSTANTIATE_TEST_SUITE_P(Members, WithdrawnAmong, testing::Values(2, 3, 4, 7),
                         testing::PrintToStringParamName());

/// Tensors in one staging, each from a multiple of 64 bytes on, as in a unit.
struct Layout {
  Layout(DataType element_type, std::vector<std::size_t> element_counts)
      : type(element_type), counts(std::move(element_counts)) {
    for (const std::size_t count : counts) {
      ranges.push_back({bytes, count * size_of(type)});
      bytes += align_up(ranges.back().bytes);
    }
  }
  Bytes tensor(const Bytes& staging, std::size_t t) const {
    const auto begin = staging.begin() + static_cast<std::ptrdiff_t>(ranges[t].begin);
    return {begin, begin + static_cast<std::ptrdiff_t>(ranges[t].bytes)};
  }
  /// `tensors`: the values of each.
  Bytes staging(const std::vector<Numbers>& tensors) const {
    Bytes result(bytes, std::byte{0x3c});
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const Bytes values = to_bytes(type, tensors[t]);
      std::copy(values.begin(), values.end(),
                result.begin() + static_cast<std::ptrdiff_t>(ranges[t].begin));
    }
    return result;
  }

  DataType type;
  std::vector<std::size_t> counts;
  std::vector<Range> ranges;
  std::size_t bytes = 0;
};

/// Random in (low, high).
Numbers random_numbers(std::size_t count, double low, double high, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform(low, high);
  Numbers numbers(count);
  for (double& number : numbers) number = uniform(random);
  return numbers;
}

/// Runs one operation for each layout, all at once; [operation][member] is what is in the staging.
std::vector<std::vector<Bytes>> run(const std::vector<Layout>& layouts,
                                    std::vector<std::vector<Bytes>> stagings,
                                    std::mt19937_64& random,
                                    std::uint64_t first_sequence = CrossResources::kWindow - 1) {
  const std::size_t members = stagings.front().size();
  MessageNetwork network(static_cast<int>(members), random());
  std::vector<std::unique_ptr<CrossResources>> resources;
  std::vector<Completion> open;
  for (std::size_t member = 0; member < members; ++member) {
    resources.push_back(
        std::make_unique<CrossResources>(network.member(static_cast<int>(member)), host_space()));
    for (std::size_t number = 0; number < layouts.size(); ++number) {
      open.push_back(start_adasum(*resources.back(), layouts[number].type, stagings[number][member],
                                  layouts[number].ranges, first_sequence + number));
    }
  }
  for (std::size_t idle = 0; !open.empty();) {
    const auto which = open.begin() + static_cast<std::ptrdiff_t>(random() % open.size());
    if (random() % 2 == 0 && which->poll()) {
      open.erase(which);
    } else if (!network.deliver_one() && ++idle > 100000) {
      throw std::logic_error("deadlock");
    }
  }
  EXPECT_EQ(network.left_over(), 0U);
  return stagings;
}

class AdasumAllreduceTest : public testing::TestWithParam<int> {
 protected:
  std::size_t members() const { return static_cast<std::size_t>(GetParam()); }
  int levels() const {
    return static_cast<int>(std::bit_width(members() - 1));  // of the tree
  }
  /// [member], of these tensors: [tensor][member].
  std::vector<Bytes> stagings(const Layout& layout,
                              const std::vector<std::vector<Numbers>>& tensors) const {
    std::vector<Bytes> result;
    for (std::size_t member = 0; member < members(); ++member) {
      std::vector<Numbers> of_member;
      for (const auto& tensor : tensors) of_member.push_back(tensor[member]);
      result.push_back(layout.staging(of_member));
    }
    return result;
  }
  static void expect_equal_everywhere(const std::vector<Bytes>& results) {
    for (std::size_t member = 1; member < results.size(); ++member) {
      EXPECT_TRUE(results[member] == results[0]) << "member " << member;
    }
  }
  /// Random vectors of members, of a kind whose factors are not near their poles: well inside one
  /// quadrant, or long and of random directions. Tensors of different magnitude.
  std::vector<std::vector<Numbers>> random_tensors(const Layout& layout,
                                                   std::mt19937_64& random) const {
    std::vector<std::vector<Numbers>> tensors;
    for (std::size_t t = 0; t < layout.counts.size(); ++t) {
      const double scale = std::exp2(-static_cast<double>(t % 4));
      const double low = layout.counts[t] < 64 ? 0.5 : -1;
      auto& tensor = tensors.emplace_back();
      for (std::size_t member = 0; member < members(); ++member) {
        tensor.push_back(random_numbers(layout.counts[t], low * scale, scale, random));
      }
    }
    return tensors;
  }
  /// Each element within what each level rounds: three operations on at most the sum of the
  /// magnitudes, and once to the type. The tensors' errors go on through the factors.
  void expect_close(const Layout& layout, const std::vector<Bytes>& inputs,
                    const Bytes& result) const {
    for (std::size_t t = 0; t < layout.counts.size(); ++t) {
      std::vector<Numbers> vectors;
      double largest = 0;
      for (const Bytes& input : inputs) {
        vectors.push_back(to_numbers(layout.type, layout.tensor(input, t)));
        double of_member = 0;
        for (const double value : vectors.back())
          of_member = std::fmax(of_member, std::fabs(value));
        largest += of_member;
      }
      const Numbers expected = adasum_of(vectors);
      const Numbers actual = to_numbers(layout.type, layout.tensor(result, t));
      const double bound = 4 * levels() * unit_roundoff(layout.type) * largest;
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(actual[i], expected[i], bound)
            << name_of(layout.type) << ", tensor " << t << ", element " << i;
      }
    }
  }
};

const std::vector<std::size_t> kCounts = {1, 0, 333, 5, 64, 1000, 0, 17};

TEST_P(AdasumAllreduceTest, IsTheSerialModelsAndTheSameEverywhere) {
  auto random = generator();
  for (const DataType type : kFloatTypes) {
    const Layout layout(type, kCounts);
    const auto inputs = stagings(layout, random_tensors(layout, random));
    const auto results = run({layout}, {inputs}, random)[0];
    expect_equal_everywhere(results);
    expect_close(layout, inputs, results[0]);
  }
}

TEST_P(AdasumAllreduceTest, ManyAtOnceGiveTheBitsOfOneAfterTheOther) {
  auto random = generator();
  std::vector<Layout> layouts;
  std::vector<std::vector<Bytes>> inputs;
  for (int number = 0; number < 12; ++number) {
    std::vector<std::size_t> counts;
    for (std::size_t t = random() % 4; t > 0; --t) counts.push_back(random() % 200);
    layouts.emplace_back(kFloatTypes[random() % 4], counts);
    inputs.push_back(stagings(layouts.back(), random_tensors(layouts.back(), random)));
  }
  const auto together = run(layouts, inputs, random);
  for (std::size_t number = 0; number < layouts.size(); ++number) {
    SCOPED_TRACE(number);
    expect_equal_everywhere(together[number]);
    EXPECT_EQ(run({layouts[number]}, {inputs[number]}, random)[0], together[number]);
  }
}

INSTANTIATE_TEST_SUITE_P(Members, AdasumAllreduceTest, testing::Range(1, 10));

}  // namespace
}  // namespace hora::internal
