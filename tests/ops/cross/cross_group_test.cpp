/// Operations between nodes on all members of a group, in one thread.
//
/// Staging whose sums take a while, as a GPU's do.
//
// Operations between nodes that a failure ends: no message is written to their memory afterwards.
#include "ops/cross/cross_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>
#include <hora/settings.h>

#include <algorithm>
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

#include "ops/cross/cross_work.h"
#include "tests/support/expect_error.h"
#include "tests/support/message_network.h"
#include "tests/support/reference/elements.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal::test {

struct CrossOperation {
  std::optional<int> broadcast_root;  // else an allreduce
  DataType type = DataType::float32;
  double scale = 1.0;
  std::vector<Bytes> inputs;  // of each member

  Bytes expected() const {
    return broadcast_root ? inputs[static_cast<std::size_t>(*broadcast_root)]
                          : reduced(type, ReduceOp::sum, inputs, {.post = scale});
  }
};

/// All members of a group.
class CrossMembers {
 public:
  CrossMembers(int count, const CrossOptions& options, std::mt19937_64& random,
               StagingSpace& space = host_space())
      : random_(random), network_(count, random()) {
    for (int index = 0; index < count; ++index) {
      members_.push_back(std::make_unique<Member>(network_.member(index), options, space));
    }
  }

  void reserve(std::size_t operations, std::size_t staging_bytes) {
    for (auto& member : members_) member->group.reserve(operations, staging_bytes);
  }

  const MessageNetwork& network() const { return network_; }

  /// Runs the operations on every member, each member at its own pace and with up to `at_once`
  /// open; returns [operation][member] what is in the staging in the end.
  std::vector<std::vector<Bytes>> run(const std::vector<CrossOperation>& operations,
                                      std::size_t at_once, std::uint64_t first_sequence = 0) {
    results_.clear();
    for (const CrossOperation& operation : operations) results_.push_back(operation.inputs);
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

  /// One random thing; true where something moved.
  bool step(const std::vector<CrossOperation>& operations, std::size_t at_once,
            std::uint64_t first_sequence) {
    if (random_() % 3 == 0) return network_.deliver_one();
    const std::size_t index = random_() % members_.size();
    Member& member = *members_[index];
    if (random_() % 2 == 0) {
      if (member.started == operations.size() || member.open.size() >= at_once) return false;
      const std::size_t number = member.started++;
      member.open.push_back(start(member.group, operations[number], results_[number][index],
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

  static Completion start(MessageCrossGroup& group, const CrossOperation& operation, Bytes& staging,
                          std::uint64_t sequence) {
    return operation.broadcast_root
               ? group.broadcast(staging, *operation.broadcast_root, sequence)
               : group.allreduce({.type = operation.type, .scale = operation.scale}, staging,
                                 sequence);
  }

  std::mt19937_64& random_;
  MessageNetwork network_;
  std::vector<std::unique_ptr<Member>> members_;
  std::vector<std::vector<Bytes>> results_;
};

inline CrossOperation allreduce_of(int members, DataType type, std::size_t bytes, double scale,
                                   std::mt19937_64& random) {
  CrossOperation operation{std::nullopt, type, scale, {}};
  for (int member = 0; member < members; ++member) {
    operation.inputs.push_back(random_values(type, bytes, random));
  }
  return operation;
}

inline void expect_results(const std::vector<CrossOperation>& operations,
                           const std::vector<std::vector<Bytes>>& results) {
  for (std::size_t number = 0; number < operations.size(); ++number) {
    const Bytes expected = operations[number].expected();
    for (std::size_t member = 0; member < results[number].size(); ++member) {
      ASSERT_TRUE(results[number][member] == expected)
          << "operation " << number << " of " << expected.size() << " bytes of "
          << name_of(operations[number].type) << ", scale " << operations[number].scale
          << (operations[number].broadcast_root ? ", a broadcast" : "") << ", member " << member;
    }
  }
}

/// A sum is complete after a random number of polls. Until then its output holds garbage, and its
/// inputs must not change: std::logic_error. Counts what is allocated.
class SlowSpace final : public StagingSpace {
 public:
  explicit SlowSpace(std::mt19937_64& random) : random_(random) {}

  std::byte* allocate(std::size_t bytes) override {
    ++allocations_;
    return host_space().allocate(bytes);
  }
  void release(std::byte* data) noexcept override { host_space().release(data); }
  Completion reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
                    std::byte* output, std::size_t count) override {
    Bytes result(count * size_of(reduction.type));
    host_space().reduce(reduction, inputs, result.data(), count);
    return later({inputs.begin(), inputs.end()}, result.size(), std::move(result), output);
  }
  Completion convert(DataType source, const std::byte* input, DataType target, std::byte* output,
                     std::size_t count) override {
    Bytes result(count * size_of(target));
    host_space().convert(source, input, target, result.data(), count);
    return later({input}, count * size_of(source), std::move(result), output);
  }

  int allocations() const { return allocations_; }

 private:
  using Bytes = std::vector<std::byte>;
  class Later final : public PendingWork {
   public:
    Later(std::vector<const std::byte*> inputs, std::size_t input_bytes, Bytes result,
          std::byte* output, std::uint64_t polls)
        : inputs_(std::move(inputs)), result_(std::move(result)), output_(output), polls_(polls) {
      // The output may be one of the inputs.
      std::erase(inputs_, output_);
      for (const std::byte* input : inputs_) before_.emplace_back(input, input + input_bytes);
      std::fill_n(output_, result_.size(), std::byte{0xAB});
    }
    bool poll() override {
      for (std::size_t i = 0; i < inputs_.size(); ++i) {
        if (!std::equal(before_[i].begin(), before_[i].end(), inputs_[i])) {
          throw std::logic_error("an input changed while it was being summed");
        }
      }
      if (polls_-- > 0) return false;
      std::copy(result_.begin(), result_.end(), output_);
      return true;
    }

   private:
    std::vector<const std::byte*> inputs_;
    Bytes result_;
    std::byte* output_;
    std::uint64_t polls_;
    std::vector<Bytes> before_;
  };

  Completion later(std::vector<const std::byte*> inputs, std::size_t input_bytes, Bytes result,
                   std::byte* output) {
    return Completion(std::make_unique<Later>(std::move(inputs), input_bytes, std::move(result),
                                              output, random_() % 4));
  }

  std::mt19937_64& random_;
  int allocations_ = 0;
};

}  // namespace hora::internal::test

namespace hora::internal {
namespace {

TEST(RequestQueue, AsksForTheOldestOnly) {
  auto random = test::generator();
  test::MessageNetwork network(2, random());
  std::byte in[2] = {};
  const std::byte out{7};
  RequestQueue queue;
  queue.add(network.member(0).receive(1, 0, {&in[0], 1}));
  queue.add(network.member(0).receive(1, 1, {&in[1], 1}));
  network.member(1).send(0, 1, {&out, 1});
  EXPECT_TRUE(network.deliver_one());  // the second one
  EXPECT_FALSE(queue.drained(network.member(0)));
  EXPECT_EQ(queue.completed(), 0U);
  network.member(1).send(0, 0, {&out, 1});
  EXPECT_TRUE(network.deliver_one());
  EXPECT_TRUE(queue.next_completed(network.member(0)));
  EXPECT_FALSE(queue.all_completed());
  EXPECT_TRUE(queue.drained(network.member(0)));
  EXPECT_FALSE(queue.next_completed(network.member(0)));
}

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

/// [from][to]: what the members give one another in one exchange; many give nothing.
std::vector<std::vector<Bytes>> random_parts(int members, std::mt19937_64& random) {
  std::vector<std::vector<Bytes>> parts(static_cast<std::size_t>(members));
  for (auto& of_member : parts) {
    for (int to = 0; to < members; ++to) {
      const std::size_t bytes = random() % 3 == 0 ? 0 : random() % 300;
      of_member.push_back(test::random_values(DataType::uint8, bytes, random));
    }
  }
  return parts;
}

struct Member {
  explicit Member(PointToPoint& link) : group(link) {}
  MessageCrossGroup group;
  std::size_t started = 0;
  std::deque<Completion> open;
};

class DirectExchangeOf : public testing::TestWithParam<int> {};

// Each member at its own pace, with several exchanges open.
TEST_P(DirectExchangeOf, BringsEveryPartToItsMember) {
  constexpr std::size_t kExchanges = 40;
  constexpr std::size_t kAtOnce = 3;
  const int count = GetParam();
  const auto members_count = static_cast<std::size_t>(count);
  auto random = test::generator();
  test::MessageNetwork network(count, random());
  std::vector<std::unique_ptr<Member>> members;
  for (int i = 0; i < count; ++i) members.push_back(std::make_unique<Member>(network.member(i)));
  std::vector<std::vector<std::vector<Bytes>>> given, got;
  for (std::size_t i = 0; i < kExchanges; ++i) {
    given.push_back(random_parts(count, random));
    got.push_back(given.back());
  }

  const auto start = [&](std::size_t index) {
    Member& member = *members[index];
    const std::size_t number = member.started++;
    std::vector<std::span<const std::byte>> sends;
    std::vector<std::span<std::byte>> receives;
    for (std::size_t peer = 0; peer < members_count; ++peer) {
      sends.emplace_back(given[number][index][peer]);
      Bytes& target = got[number][peer][index];
      if (peer != index) std::fill(target.begin(), target.end(), std::byte{0});
      receives.emplace_back(target);
    }
    // Tags wrap on the way.
    member.open.push_back(
        member.group.exchange(sends, receives, CrossResources::kWindow - 20 + number));
  };
  const auto complete = [&] {
    return std::all_of(members.begin(), members.end(), [&](const auto& member) {
      return member->started == kExchanges && member->open.empty();
    });
  };
  std::size_t idle = 0;
  while (!complete()) {
    const std::size_t index = random() % members_count;
    Member& member = *members[index];
    bool moved = random() % 3 == 0 && network.deliver_one();
    if (member.started < kExchanges && member.open.size() < kAtOnce && random() % 2 == 0) {
      start(index);
      moved = true;
    }
    if (!member.open.empty()) {
      const auto which = static_cast<std::ptrdiff_t>(random() % member.open.size());
      if (member.open[static_cast<std::size_t>(which)].poll()) {
        member.open.erase(member.open.begin() + which);
        moved = true;
      }
    }
    idle = moved ? 0 : idle + 1;
    if (idle > 1000 * members_count && !network.deliver_one()) throw std::logic_error("deadlock");
  }
  EXPECT_EQ(network.left_over(), 0U);
  EXPECT_TRUE(got == given);
}

INSTANTIATE_TEST_SUITE_P(Members, DirectExchangeOf, testing::Values(1, 2, 3, 4, 7),
                         testing::PrintToStringParamName());

TEST(DirectExchange, RefusesOtherNumbersOfPartsThanMembers) {
  auto random = test::generator();
  test::MessageNetwork network(2, random());
  MessageCrossGroup group(network.member(0));
  const std::vector<std::span<const std::byte>> sends(2);
  const std::vector<std::span<std::byte>> receives(3);
  EXPECT_THROW(group.exchange(sends, receives, 0), Error);
  const std::vector<std::span<const std::byte>> one_send(1);
  EXPECT_THROW(group.exchange(one_send, {receives.data(), 2}, 0), Error);
}

enum class Operation { broadcast, short_allreduce, allreduce, exchange };

struct WithdrawingMember {
  WithdrawingMember(PointToPoint& link, std::size_t bytes, std::mt19937_64& random)
      : group(link), memory(test::random_values(DataType::uint8, bytes, random)) {}

  void start(Operation operation, int root, int members) {
    switch (operation) {
      case Operation::broadcast:
        open.push_back(group.broadcast(memory, root, 0));
        break;
      case Operation::short_allreduce:
      case Operation::allreduce:
        open.push_back(group.allreduce({.type = DataType::uint8}, memory, 0));
        break;
      case Operation::exchange: {
        const std::size_t part = memory.size() / static_cast<std::size_t>(members);
        std::vector<std::span<std::byte>> parts;
        std::vector<std::span<const std::byte>> sends(static_cast<std::size_t>(members), given);
        for (int from = 0; from < members; ++from) {
          parts.push_back(std::span(memory).subspan(static_cast<std::size_t>(from) * part, 1));
        }
        open.push_back(group.exchange(sends, parts, 0));
        break;
      }
    }
  }

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
  Bytes given{std::byte{7}};
  std::vector<Completion> open;
};

class WithdrawnAmong : public testing::TestWithParam<int> {};

TEST_P(WithdrawnAmong, NothingArrivesAnyMore) {
  const int count = GetParam();
  auto random = test::generator();
  int waited = 0, cancelled = 0;
  for (int round = 0; round < 400; ++round) {
    const auto operation = static_cast<Operation>(round % 4);
    const std::size_t bytes = operation == Operation::allreduce ? 8192 : 640;
    test::MessageNetwork network(count, random());
    std::vector<std::unique_ptr<WithdrawingMember>> members;
    for (int i = 0; i < count; ++i) {
      members.push_back(std::make_unique<WithdrawingMember>(network.member(i), bytes, random));
    }
    const int root = static_cast<int>(random() % static_cast<std::uint64_t>(count));
    for (auto& member : members) {
      if (random() % 4 > 0) member->start(operation, root, count);
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

}  // namespace

}  // namespace hora::internal
