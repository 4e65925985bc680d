#include "core/control_block/node_control_block.h"

#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/core/control_block/shared_control_block.h"
#include "tests/support/seed.h"

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

using Arrival = NodeControlBlock::Arrival;
using test::SharedControlBlock;
using Ids = std::vector<Id>;

ControlBlockShape shape(int local_size, bool single_node) {
  return {.local_size = local_size,
          .id_capacity = 8,
          .single_node = single_node,
          .mailbox_bytes = 256,
          .control_bytes = 1000};
}

Location at(std::uint64_t offset) {
  return {.window = 1, .reserved = 0, .offset = offset};
}

std::vector<std::byte> payload(std::size_t bytes, int value) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
}

/// The ids of the next batch; nothing where there is none, or a payload.
Ids next_ids(NodeControlBlock& control_block) {
  const auto batch = control_block.next_batch();
  return batch ? batch->ids : Ids{};
}

TEST(ControlBlock, TheLastArriverAppendsTheIdToTheLogOfASingleNode) {
  SharedControlBlock control_block(shape(3, true));
  const Id id = make_id(5, 0);
  EXPECT_EQ(control_block[2].arrive(id, at(128)), Arrival::waiting);
  EXPECT_EQ(control_block[0].arrive(id, at(64)), Arrival::waiting);
  EXPECT_EQ(control_block[1].ready_ranks(id), 0b101u);
  EXPECT_EQ(control_block[0].last_run(id), 0u);
  EXPECT_FALSE(control_block[0].log_has_pending_work());
  EXPECT_EQ(control_block[1].arrive(id, at(192)), Arrival::complete);
  EXPECT_EQ(control_block[0].ready_ranks(id), 0u);
  EXPECT_GT(control_block[0].last_run(id), 0u);
  for (int r = 0; r < 3; ++r) {
    EXPECT_TRUE(control_block[r].log_has_pending_work());
    EXPECT_EQ(next_ids(control_block[r]), Ids{id});
    EXPECT_FALSE(control_block[r].log_has_pending_work());
    EXPECT_EQ(control_block[r].location(id, 0), at(64));
    EXPECT_EQ(control_block[r].location(id, 1), at(192));
    EXPECT_EQ(control_block[r].location(id, 2), at(128));
  }
  EXPECT_FALSE(control_block[0].pop_arrival().has_value());
}

TEST(ControlBlock, TheLastArriverTellsTheLeaderWhereThereAreSeveralNodes) {
  SharedControlBlock control_block(shape(2, false));
  EXPECT_EQ(control_block[0].arrive(3, at(0)), Arrival::waiting);
  EXPECT_FALSE(control_block[0].leader_has_pending_work());
  EXPECT_EQ(control_block[1].arrive(3, at(0)), Arrival::complete);
  EXPECT_TRUE(control_block[0].leader_has_pending_work());
  EXPECT_FALSE(control_block[0].log_has_pending_work());
  EXPECT_EQ(control_block[0].pop_arrival(), Id{3});
  EXPECT_FALSE(control_block[0].pop_arrival().has_value());
}

TEST(ControlBlock, TheLeaderLearnsOnceThatARankIsResized) {
  SharedControlBlock control_block(shape(2, false));
  const Id id = make_id(3, 0);
  control_block[1].arrive(id, at(0), {}, true);
  control_block[0].arrive(id, at(64));
  ASSERT_EQ(control_block[0].pop_arrival(), id);
  EXPECT_TRUE(control_block[0].take_resized(id));
  EXPECT_FALSE(control_block[0].take_resized(id));
  control_block[1].arrive(id, at(0));
  control_block[0].arrive(id, at(64));
  EXPECT_FALSE(control_block[0].take_resized(id));
}

TEST(ControlBlock, ARetiredIdIsStale) {
  SharedControlBlock control_block(shape(2, true));
  const Id old = make_id(4, 0);
  control_block[1].arrive(old, at(0));
  EXPECT_FALSE(control_block[0].retire(old, /*only_idle=*/true)) << "rank 1 is ready for it";
  EXPECT_EQ(control_block[0].ready_ranks(old), 0b10u);
  EXPECT_TRUE(control_block[0].retire(old, /*only_idle=*/false));
  EXPECT_EQ(control_block[0].arrive(old, at(0)), Arrival::stale);
  EXPECT_EQ(control_block[0].ready_ranks(old), 0u);

  const Id next = make_id(4, 1);
  EXPECT_EQ(control_block[0].ready_ranks(next), 0u) << "no rank is ready for the new id";
  EXPECT_EQ(control_block[0].arrive(next, at(0)), Arrival::waiting);
  EXPECT_TRUE(control_block[0].retire(old, true)) << "again: nothing to do";
  EXPECT_EQ(control_block[0].ready_ranks(next), 0b01u);
  EXPECT_EQ(control_block[1].arrive(next, at(0)), Arrival::complete);
  EXPECT_EQ(next_ids(control_block[0]), Ids{next});
}

TEST(ControlBlock, GenerationsWrapAround) {
  SharedControlBlock control_block(shape(1, true));
  for (std::uint32_t generation = 0; generation < 65536; ++generation) {
    ASSERT_TRUE(control_block[0].retire(make_id(2, generation), true));
  }
  EXPECT_EQ(control_block[0].arrive(make_id(2, 65535), at(0)), Arrival::stale);
  EXPECT_EQ(control_block[0].arrive(make_id(2, 0), at(0)), Arrival::complete);
}

TEST(ControlBlock, ControlPayloadsKeepTheirPlaceInTheLog) {
  SharedControlBlock control_block(shape(1, true));
  control_block[0].arrive(1, at(0));
  ASSERT_TRUE(control_block[0].push_control(payload(30, 7)));
  ASSERT_TRUE(control_block[0].push_control({}));
  control_block[0].arrive(2, at(0));
  EXPECT_EQ(next_ids(control_block[0]), Ids{1});
  const auto control = control_block[0].next_batch();
  ASSERT_TRUE(control.has_value());
  EXPECT_EQ(control->kind, LogBatch::Kind::control);
  EXPECT_EQ(control->payload, payload(30, 7));
  EXPECT_EQ(control_block[0].next_batch()->payload.size(), 0u);
  EXPECT_EQ(next_ids(control_block[0]), Ids{2});
}

TEST(ControlBlock, AFullControlRingRefusesUntilTheSlowestReaderHasCaughtUp) {
  SharedControlBlock control_block(shape(2, false));
  int pushed = 0;
  while (control_block[0].push_control(payload(300, pushed))) ++pushed;
  EXPECT_EQ(pushed, 3);
  EXPECT_TRUE(control_block[0].next_batch().has_value());
  EXPECT_FALSE(control_block[0].push_control(payload(300, 3))) << "rank 1 has read nothing";
  EXPECT_EQ(control_block[1].next_batch()->payload, payload(300, 0));
  EXPECT_TRUE(control_block[0].push_control(payload(300, 3))) << "it crosses the end of the ring";
  EXPECT_FALSE(control_block[0].push_control(payload(300, 4)));
  for (int value = 1; value <= 3; ++value) {
    EXPECT_EQ(control_block[0].next_batch()->payload, payload(300, value));
    EXPECT_EQ(control_block[1].next_batch()->payload, payload(300, value));
  }
  EXPECT_FALSE(control_block[0].push_control(payload(1001, 0))) << "longer than the ring";
}

TEST(ControlBlock, TheLogHoldsABoundedNumberOfControlPayloads) {
  SharedControlBlock control_block(shape(1, true));
  int pushed = 0;
  while (pushed < 100000 && control_block[0].push_control({})) ++pushed;
  EXPECT_EQ(pushed, 1024);
  EXPECT_TRUE(control_block[0].next_batch().has_value());
  EXPECT_TRUE(control_block[0].push_control({}));
  EXPECT_FALSE(control_block[0].push_control({}));
}

TEST(ControlBlock, MailKeepsItsOrderPerRankAndIsRefusedWhenThereIsNoRoom) {
  SharedControlBlock control_block(shape(2, true));
  int pushed = 0;
  while (control_block[1].push_mail(payload(60, pushed))) ++pushed;
  EXPECT_EQ(pushed, 4);
  EXPECT_TRUE(control_block[0].push_mail(payload(5, 99)));
  EXPECT_TRUE(control_block[0].leader_has_pending_work());
  for (int value = 0; value < pushed; ++value) {
    EXPECT_EQ(control_block[0].pop_mail(1), payload(60, value));
  }
  EXPECT_FALSE(control_block[0].pop_mail(1).has_value());
  EXPECT_EQ(control_block[0].pop_mail(0), payload(5, 99));
  EXPECT_FALSE(control_block[0].leader_has_pending_work());
}

// Whatever the page holds, a reader stays inside of it (AddressSanitizer checks) and terminates.
TEST(ControlBlock, ADamagedPageIsAnErrorOrNothing) {
  auto random = test::generator();
  ControlBlockShape small = shape(2, false);
  small.id_capacity = 16;
  small.mailbox_bytes = 256;
  small.control_bytes = 256;
  int errors = 0;
  for (int round = 0; round < 3000; ++round) {
    SharedControlBlock control_block(small);
    ASSERT_TRUE(control_block[0].push_control(payload(100, 1)));
    control_block[0].push_run(Ids{3, 4, 5});
    ASSERT_TRUE(control_block[1].push_mail(payload(50, 2)));
    // Counters, entries, lengths.
    std::vector<std::size_t> words;
    for (std::size_t at = 0; at + 8 <= control_block.memory().size(); at += 8) {
      if (std::any_of(&control_block.memory()[at], &control_block.memory()[at] + 8,
                      [](std::byte b) { return b != std::byte{}; })) {
        words.push_back(at);
      }
    }
    for (int i = 0; i < 3; ++i) {
      std::uint64_t word = random() % 3 == 0 ? random() : random() % 300;
      if (random() % 8 == 0) word = ~std::uint64_t{0} - random() % 8;
      std::memcpy(&control_block.memory()[words[random() % words.size()]], &word, sizeof word);
    }
    try {
      for (int i = 0; i < 100; ++i) {
        const auto batch = control_block[1].next_batch();
        if (!batch) break;
        ASSERT_LE(batch->ids.size(), 16u + 1024u);
        ASSERT_LE(batch->payload.size(), 256u);
      }
      for (int i = 0; i < 100 && control_block[0].pop_mail(1); ++i) {
      }
      control_block[0].pop_arrival();
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::transport);
      ++errors;
    }
  }
  EXPECT_GT(errors, 100);
}

// Ranks arrive in any order, read at any pace, and are ready again once all have read: many laps
// around the rings, whose entries are never overrun.
TEST(ControlBlock, LongRandomRunsStayInOrder) {
  auto random = test::generator();
  for (const bool single_node : {true, false}) {
    constexpr int kRanks = 3;
    constexpr Id kIds = 8;
    SharedControlBlock control_block(shape(kRanks, single_node));
    std::vector<Ids> read(kRanks);
    std::vector<std::vector<std::uint64_t>> arrived(kRanks, std::vector<std::uint64_t>(kIds));
    std::vector<std::vector<std::uint64_t>> seen = arrived;
    while (read[0].size() < 20000) {
      const int r = static_cast<int>(random() % kRanks);
      const auto rank = static_cast<std::size_t>(r);
      const Id id = static_cast<Id>(random() % kIds);
      const bool all_read = std::all_of(seen.begin(), seen.end(), [&](const auto& counts) {
        return counts[id] >= arrived[rank][id];
      });
      if (random() % 4 != 0) {
        if (!all_read) continue;
        ++arrived[rank][id];
        control_block[r].arrive(id, at(arrived[rank][id]));
        continue;
      }
      Ids decided;
      while (const auto arrival = control_block[0].pop_arrival()) decided.push_back(*arrival);
      control_block[0].push_run(decided);
      const auto batch = control_block[r].next_batch();
      if (!batch) continue;
      for (const Id run : batch->ids) {
        read[rank].push_back(run);
        const std::uint64_t round = ++seen[rank][run];
        for (int peer = 0; peer < kRanks; ++peer) {
          ASSERT_EQ(control_block[r].location(run, peer), at(round));
        }
      }
    }
    for (const Ids& of_rank : read) {
      const std::size_t common = std::min(of_rank.size(), read[0].size());
      ASSERT_TRUE(std::equal(of_rank.begin(), of_rank.begin() + static_cast<std::ptrdiff_t>(common),
                             read[0].begin()));
    }
  }
}

TEST(NodeControlBlock, KnowsWhoCameLastAndHowLate) {
  using namespace std::chrono_literals;
  test::SharedControlBlock control_block({.local_size = 3, .id_capacity = 16});
  EXPECT_EQ(control_block[0].last_arrival(2).local_rank, -1);
  control_block[2].arrive(2, at(0), 5ms);
  control_block[0].arrive(2, at(0), 2ms);
  control_block[1].arrive(2, at(0), 9ms);
  EXPECT_EQ(control_block[0].last_arrival(2).local_rank, 1);
  EXPECT_EQ(control_block[0].last_arrival(2).at, 9ms);
  EXPECT_EQ(control_block[0].last_arrival(2).late, 4ms);
  control_block[1].arrive(3, at(0), 9ms);
  EXPECT_EQ(control_block[0].last_arrival(3).late, std::chrono::nanoseconds::max()) << "alone";
}

}  // namespace

}  // namespace hora::internal
