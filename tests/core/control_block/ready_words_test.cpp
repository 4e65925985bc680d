#include "core/control_block/ready_words.h"

#include <gtest/gtest.h>

#include <vector>

namespace hora::internal {
namespace {

using Arrival = ReadyWords::Arrival;

/// The words of one id.
struct Words {
  Words(int local_size, int ranks_per_word)
      : size(local_size), per_word(ranks_per_word), others(kMaxLocalSize) {}
  ReadyWords operator()(std::uint32_t generation) {
    return {{first, others.data()}, generation, size, per_word};
  }

  int size;
  int per_word;
  Atomic<std::uint64_t> first = 0;
  std::vector<Atomic<std::uint64_t>> others;
};

struct Shape {
  int local_size;
  int ranks_per_word;
};

class ReadyWordsOf : public testing::TestWithParam<Shape> {
 protected:
  Words words_{GetParam().local_size, GetParam().ranks_per_word};
  const int size_ = GetParam().local_size;

  /// All ranks arrive, `last` as the last.
  void arrive_all(std::uint32_t generation, int last) {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == last) continue;
      ASSERT_EQ(words_(generation).arrive(rank), Arrival::waiting) << rank;
      ASSERT_EQ(words_(generation).arrive(rank), Arrival::waiting) << rank << ", again";
      ASSERT_TRUE(words_(generation).ranks()[static_cast<std::size_t>(rank)]);
    }
    ASSERT_EQ(words_(generation).arrive(last), Arrival::complete);
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, ReadyWordsOf,
                         testing::Values(Shape{2, 32}, Shape{32, 32}, Shape{33, 32}, Shape{64, 32},
                                         Shape{65, 32}, Shape{200, 32}, Shape{kMaxLocalSize, 32},
                                         Shape{3, 1}, Shape{5, 2}),
                         [](const auto& shape) {
                           return std::to_string(shape.param.local_size) + "RanksBy" +
                                  std::to_string(shape.param.ranks_per_word);
                         });

TEST_P(ReadyWordsOf, AreCompleteByTheLastWhoeverThatIs) {
  for (int last = 0; last<size_; last += size_> 64 ? 31 : 1) {
    arrive_all(0, last);
    EXPECT_EQ(words_(0).ranks().count(), static_cast<std::size_t>(size_)) << "until the round ends";
    EXPECT_FALSE(words_(0).retire(false)) << "its last arriver is at work";
    words_(0).end_round();
    EXPECT_TRUE(words_(0).ranks().none());
  }
}

TEST_P(ReadyWordsOf, HaveAGenerationForEachId) {
  for (std::uint32_t generation = 0; generation < 3; ++generation) {
    EXPECT_TRUE(words_(generation).is_current());
    arrive_all(generation, size_ - 1);
    words_(generation).end_round();
    EXPECT_EQ(words_(generation).arrive(size_ - 1), Arrival::waiting);
    EXPECT_FALSE(words_(generation).retire(/*only_idle=*/true));
    EXPECT_TRUE(words_(generation).retire(/*only_idle=*/false));
    EXPECT_FALSE(words_(generation).is_current());
    EXPECT_TRUE(words_(generation).retire(false)) << "again: nothing to do";
    EXPECT_EQ(words_(generation).arrive(0), Arrival::stale);
    EXPECT_EQ(words_(generation).arrive(size_ - 1), Arrival::stale);
    EXPECT_TRUE(words_(generation).ranks().none());
    EXPECT_TRUE(words_(generation + 1).ranks().none());
  }
}

TEST_P(ReadyWordsOf, ForgetWhoWithdraws) {
  for (const int rank : {0, size_ - 1}) {
    words_(0).arrive(rank);
    words_(1).withdraw(rank);
    EXPECT_EQ(words_(0).ranks().count(), 1u) << "another generation's";
    words_(0).withdraw(rank);
    EXPECT_TRUE(words_(0).ranks().none());
  }
  arrive_all(0, 0);
}

TEST_P(ReadyWordsOf, ForgetAllByAReset) {
  for (int rank = 1; rank < size_; ++rank) words_(0).arrive(rank);
  words_(1).reset();
  EXPECT_EQ(words_(0).ranks().count(), static_cast<std::size_t>(size_ - 1));
  words_(0).reset();
  EXPECT_TRUE(words_(0).ranks().none());
  arrive_all(0, size_ - 1);
}

// 15 bits of rounds, 16 of generations.
TEST_P(ReadyWordsOf, RoundsAndGenerationsWrapAround) {
  if (size_ > 5) return;
  for (int round = 0; round < 70'000; ++round) {
    arrive_all(0, round % size_);
    words_(0).end_round();
  }
  for (std::uint32_t generation = 0; generation < 65536; ++generation) {
    ASSERT_TRUE(words_(generation).retire(true));
  }
  EXPECT_EQ(words_(65535).arrive(0), Arrival::stale);
  arrive_all(0, 0);
}

TEST(LocalRanksOfANode, AreTheLowest) {
  EXPECT_EQ(all_local_ranks(3), LocalRanks(0b111));
  EXPECT_EQ(all_local_ranks(kMaxLocalSize).count(), static_cast<std::size_t>(kMaxLocalSize));
  EXPECT_TRUE(all_local_ranks(200)[199]);
  EXPECT_FALSE(all_local_ranks(200)[200]);
}

}  // namespace
}  // namespace hora::internal
