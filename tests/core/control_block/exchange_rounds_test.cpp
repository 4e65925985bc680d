#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "core/control_block/node_progress.h"
#include "tests/core/control_block/shared_control_block.h"

namespace hora::internal {
namespace {

Location place(std::uint64_t offset) {
  return {.window = 0, .reserved = 0, .offset = offset};
}

TEST(ExchangeRounds, ARoundIsPublishedWhenAllOwnersHavePublishedTheirSlices) {
  test::SharedControlBlock control_block({.local_size = 3, .id_capacity = 8});
  ExchangeRounds first = control_block[0].exchange_rounds();
  ExchangeRounds second = control_block[1].exchange_rounds();
  const ExchangeRounds third = control_block[2].exchange_rounds();
  EXPECT_TRUE(third.published(0, 0));
  first.publish(0, place(64));
  EXPECT_TRUE(third.published(0, 1));
  EXPECT_FALSE(third.published(0, 2));
  second.publish(0, place(128));
  EXPECT_TRUE(third.published(0, 2));
  EXPECT_FALSE(third.published(1, 2));
  first.publish(1, place(192));
  EXPECT_EQ(third.staging(0, 0), place(64)) << "the next round has a slot of its own";
  EXPECT_EQ(third.staging(0, 1), place(192));
  EXPECT_EQ(third.staging(1, 0), place(128));
}

TEST(ExchangeRounds, ASlotIsFreeWhenAllHaveCopied) {
  test::SharedControlBlock control_block({.local_size = 2, .id_capacity = 8});
  ExchangeRounds first = control_block[0].exchange_rounds();
  ExchangeRounds second = control_block[1].exchange_rounds();
  EXPECT_TRUE(first.may_fill(0));
  EXPECT_TRUE(first.may_fill(1));
  EXPECT_FALSE(first.may_fill(2));
  first.copied(0);
  EXPECT_FALSE(first.may_fill(2));
  second.copied(0);
  EXPECT_TRUE(first.may_fill(2));
  EXPECT_FALSE(first.may_fill(3));
}

// What an owner writes before it publishes is what every copier reads, however far apart they are.
TEST(ExchangeRounds, OrdersWhatOwnersWriteAndOthersRead) {
  constexpr int kRanks = 3;
  constexpr int kOwners = 2;
  constexpr std::uint64_t kRounds = 20000;
  test::SharedControlBlock control_block({.local_size = kRanks, .id_capacity = 8});
  std::array<std::array<std::uint64_t, ExchangeRoundsCell::kSlots>, kOwners> staging{};
  std::vector<std::uint64_t> wrong(kRanks, 0);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        ExchangeRounds rounds = control_block[rank].exchange_rounds();
        const auto own_rank = static_cast<std::size_t>(rank);
        std::uint64_t filled = 0;
        for (std::uint64_t copied = 0; copied < kRounds;) {
          if (rank < kOwners && filled < kRounds && rounds.may_fill(filled)) {
            staging[own_rank][ExchangeRounds::slot(filled)] = filled;
            rounds.publish(filled, place(filled));
            ++filled;
          } else if (rounds.published(copied, kOwners)) {
            for (int owner = 0; owner < kOwners; ++owner) {
              const std::uint64_t value =
                  staging[static_cast<std::size_t>(owner)][ExchangeRounds::slot(copied)];
              if (value != copied || rounds.staging(owner, copied) != place(copied))
                ++wrong[own_rank];
            }
            rounds.copied(copied++);
          } else {
            std::this_thread::yield();
          }
        }
      });
    }
  }
  EXPECT_EQ(wrong, std::vector<std::uint64_t>(kRanks, 0));
}

}  // namespace
}  // namespace hora::internal
