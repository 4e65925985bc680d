#include "core/control_block/sequence_ring.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <thread>
#include <vector>

namespace hora::internal {
namespace {

template <std::size_t capacity>
struct Ring {
  SequenceRingHead head{};
  std::array<SequenceRingEntry, capacity> entries{};
  SequenceRing ring{&head, entries.data(), capacity};
};

TEST(SequenceRing, AnUnpublishedEntryEndsTheView) {
  Ring<4> memory;
  SequenceRing& ring = memory.ring;
  EXPECT_EQ(ring.find(0), nullptr);
  const auto first = ring.take_ticket();
  const auto second = ring.take_ticket();
  EXPECT_EQ(first, 0u);
  EXPECT_EQ(second, 1u);
  ring.publish(second, 1, 70, 7, 0);
  EXPECT_EQ(ring.find(0), nullptr) << "published out of order";
  ring.publish(first, 0, 60, 6, 5);
  ASSERT_NE(ring.find(0), nullptr);
  EXPECT_EQ(ring.find(0)->value, 60u);
  EXPECT_EQ(ring.find(0)->length, 6u);
  EXPECT_EQ(ring.find(0)->batch_end.load(), 5u);
  EXPECT_EQ(ring.find(1)->kind, 1u);
  EXPECT_EQ(ring.find(2), nullptr);
}

TEST(SequenceRing, AnOlderLapsEntryIsNotTakenForThisOne) {
  Ring<3> memory;
  for (std::uint64_t t = 0; t < 30; ++t) {
    EXPECT_EQ(memory.ring.find(t), nullptr) << t;
    ASSERT_EQ(memory.ring.take_ticket(), t);
    memory.ring.publish(t, 0, t * 10, 0, t + 1);
    ASSERT_NE(memory.ring.find(t), nullptr);
    EXPECT_EQ(memory.ring.find(t)->value, t * 10);
    EXPECT_EQ(memory.ring.find(t + 3), nullptr);
  }
}

TEST(SequenceRing, ManyWritersOneOrderForAllReaders) {
  constexpr std::uint64_t kWriters = 3;
  constexpr std::uint64_t kEach = 3000;
  const auto memory = std::make_unique<Ring<kWriters * kEach>>();
  std::vector<std::vector<std::uint64_t>> read(2);
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t writer = 0; writer < kWriters; ++writer) {
      threads.emplace_back([&, writer] {
        for (std::uint64_t n = 0; n < kEach; ++n) {
          memory->ring.publish(memory->ring.take_ticket(), 0, writer * kEach + n, 0, 0);
        }
      });
    }
    for (auto& own : read) {
      threads.emplace_back([&] {
        for (std::uint64_t t = 0; t < kWriters * kEach;) {
          const SequenceRingEntry* entry = memory->ring.find(t);
          if (!entry) {
            std::this_thread::yield();
            continue;
          }
          own.push_back(entry->value);
          ++t;
        }
      });
    }
  }
  EXPECT_EQ(read[0], read[1]);
  std::vector<std::uint64_t> next(kWriters, 0);
  for (const std::uint64_t value : read[0]) {
    EXPECT_EQ(value % kEach, next[value / kEach]++) << "a writer's own order is kept";
  }
}

}  // namespace
}  // namespace hora::internal
