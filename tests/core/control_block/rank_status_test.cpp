#include "core/control_block/rank_status.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>

namespace hora::internal {
namespace {

using namespace std::chrono_literals;

TEST(SharedNote, HoldsTheLastText) {
  const auto note = std::make_unique<SharedNote>();
  EXPECT_FALSE(note->read());
  for (const std::size_t length : {0, 1, 7, 8, 9, 95, 96}) {
    const std::string text(length, 'x');
    note->write(text, 5s);
    EXPECT_EQ(note->read().value().text, text);
    EXPECT_EQ(note->read().value().time, 5s);
  }
  note->write(std::string(200, 'y'), 6s);
  EXPECT_EQ(note->read().value().text, std::string(SharedNote::kMostBytes, 'y'));
  note->clear();
  EXPECT_FALSE(note->read());
}

TEST(SharedNote, IsReadWholeWhileItIsWritten) {
  const auto note = std::make_unique<SharedNote>();
  std::atomic<bool> stop{false};
  std::jthread writer([&] {
    for (int i = 1; !stop.load(); ++i) {
      note->write(
          std::string(static_cast<std::size_t>(1 + i % 90), static_cast<char>('a' + i % 26)),
          std::chrono::nanoseconds(1 + i % 26));
    }
  });
  for (int i = 0; i < 20000; ++i) {
    const auto read = note->read();
    if (!read) continue;
    const char letter = static_cast<char>('a' + (read->time.count() - 1));
    ASSERT_EQ(read->text, std::string(read->text.size(), letter));
  }
  stop.store(true);
}

TEST(StallBoard, OneRankSpeaksInAnInterval) {
  const auto board = std::make_unique<StallBoard>();
  EXPECT_TRUE(board->claim(10s, 10s));
  EXPECT_FALSE(board->claim(10s, 10s));
  EXPECT_FALSE(board->claim(19s, 10s));
  EXPECT_TRUE(board->claim(20s, 20s));
  EXPECT_FALSE(board->claim(39s, 1s));
  EXPECT_TRUE(board->claim(40s, 1s));
}

TEST(StallBoard, KnowsTheLowestRankThatWaits) {
  const auto board = std::make_unique<StallBoard>();
  board->set_waiting(3, true);
  board->set_waiting(1, true);
  EXPECT_TRUE(board->is_lowest(0));
  EXPECT_TRUE(board->is_lowest(1));
  EXPECT_FALSE(board->is_lowest(3));
  board->set_waiting(1, false);
  EXPECT_TRUE(board->is_lowest(3));
  board->set_waiting(3, false);
  board->set_waiting(kMaxLocalSize - 1, true);
  EXPECT_TRUE(board->is_lowest(kMaxLocalSize - 1));
  board->set_waiting(70, true);
  EXPECT_FALSE(board->is_lowest(kMaxLocalSize - 1));
  EXPECT_TRUE(board->is_lowest(70));
}

}  // namespace
}  // namespace hora::internal
