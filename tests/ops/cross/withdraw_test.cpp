// Operations between nodes that a failure ends: no message is written to their memory afterwards.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "ops/cross/cross_group.h"
#include "tests/support/message_network.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::Bytes;

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

  MemoryUse withdraw() {
    MemoryUse use = MemoryUse::none;
    for (Completion& completion : open) use = std::max(use, completion.withdraw());
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
      MemoryUse use = member->withdraw();
      (use == MemoryUse::writes ? waited : cancelled) += is_open ? 1 : 0;
      while (use == MemoryUse::writes) {
        ASSERT_TRUE(network.deliver_one()) << "waits for a message that has not been sent";
        use = member->withdraw();
      }
      left.push_back(member->memory);
    }
    while (network.deliver_one()) {
    }
    for (std::size_t i = 0; i < members.size(); ++i) {
      EXPECT_NE(members[i]->withdraw(), MemoryUse::writes);
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
