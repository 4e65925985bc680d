#include "core/board/exchange_desk.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "tests/core/board/shared_board.h"

namespace hora {
namespace {

Location place(std::uint64_t offset) {
  return {.window = 0, .reserved = 0, .offset = offset};
}

TEST(ExchangeDesk, ARoundIsPublishedWhenAllOwnersHavePublishedTheirSlices) {
  test::SharedBoard board({.local_size = 3, .id_capacity = 8});
  ExchangeDesk first = board[0].exchange_desk();
  ExchangeDesk second = board[1].exchange_desk();
  const ExchangeDesk third = board[2].exchange_desk();
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

TEST(ExchangeDesk, ASlotIsFreeWhenAllHaveCopied) {
  test::SharedBoard board({.local_size = 2, .id_capacity = 8});
  ExchangeDesk first = board[0].exchange_desk();
  ExchangeDesk second = board[1].exchange_desk();
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
TEST(ExchangeDesk, OrdersWhatOwnersWriteAndOthersRead) {
  constexpr int kRanks = 3;
  constexpr int kOwners = 2;
  constexpr std::uint64_t kRounds = 20000;
  test::SharedBoard board({.local_size = kRanks, .id_capacity = 8});
  std::array<std::array<std::uint64_t, ExchangeDeskCell::kSlots>, kOwners> staging{};
  std::vector<std::uint64_t> wrong(kRanks, 0);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        ExchangeDesk desk = board[rank].exchange_desk();
        const auto me = static_cast<std::size_t>(rank);
        std::uint64_t filled = 0;
        for (std::uint64_t copied = 0; copied < kRounds;) {
          if (rank < kOwners && filled < kRounds && desk.may_fill(filled)) {
            staging[me][ExchangeDesk::slot(filled)] = filled;
            desk.publish(filled, place(filled));
            ++filled;
          } else if (desk.published(copied, kOwners)) {
            for (int owner = 0; owner < kOwners; ++owner) {
              const std::uint64_t value =
                  staging[static_cast<std::size_t>(owner)][ExchangeDesk::slot(copied)];
              if (value != copied || desk.staging(owner, copied) != place(copied)) ++wrong[me];
            }
            desk.copied(copied++);
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
}  // namespace hora
