#include "core/control_block/node_control_block.h"

#include <gtest/gtest.h>
#include <hora/error.h>

#include "tests/core/control_block/shared_control_block.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using Arrival = ReadyWords::Arrival;

/// The parameters: local ranks, ranks of a word.
class ReadyWordsOf : public testing::TestWithParam<std::pair<int, int>> {
 protected:
  /// The words of one id.
  ReadyWords words(std::uint32_t generation) {
    return {words_.data(), generation, size_, GetParam().second};
  }
  /// All ranks arrive, `last` as the last.
  void arrive_all(std::uint32_t generation, int last) {
    for (int rank = 0; rank < size_; ++rank) {
      if (rank == last) continue;
      for (int again = 0; again < 2; ++again) {
        ASSERT_EQ(words(generation).arrive(rank), Arrival::waiting) << rank;
      }
      ASSERT_TRUE(words(generation).ranks()[static_cast<std::size_t>(rank)]);
    }
    ASSERT_EQ(words(generation).arrive(last), Arrival::complete);
  }

  const int size_ = GetParam().first;
  std::vector<Atomic<std::uint64_t>> words_ = std::vector<Atomic<std::uint64_t>>(kMaxLocalSize);
};
INSTANTIATE_TEST_SUITE_P(Shapes, ReadyWordsOf,
                         testing::Values(std::pair(2, 32), std::pair(32, 32), std::pair(33, 32),
                                         std::pair(64, 32), std::pair(65, 32), std::pair(200, 32),
                                         std::pair(kMaxLocalSize, 32), std::pair(3, 1),
                                         std::pair(5, 2)));

TEST_P(ReadyWordsOf, AreCompleteByTheLastWhoeverThatIs) {
  const int step = size_ > 64 ? 31 : 1;
  for (int last = 0; last < size_; last += step) {
    arrive_all(0, last);
    EXPECT_EQ(words(0).ranks().count(), static_cast<std::size_t>(size_)) << "until the round ends";
    EXPECT_FALSE(words(0).retire(false)) << "its last arriver is at work";
    words(0).end_round();
    EXPECT_TRUE(words(0).ranks().none());
  }
}

TEST_P(ReadyWordsOf, HaveAGenerationForEachId) {
  for (std::uint32_t generation = 0; generation < 3; ++generation) {
    const auto own = [&] { return words(generation); };
    EXPECT_TRUE(own().is_current());
    arrive_all(generation, size_ - 1);
    own().end_round();
    EXPECT_EQ(own().arrive(size_ - 1), Arrival::waiting);
    EXPECT_FALSE(own().retire(/*only_idle=*/true));
    EXPECT_TRUE(own().retire(/*only_idle=*/false));
    EXPECT_FALSE(own().is_current());
    EXPECT_TRUE(own().retire(false)) << "again: nothing to do";
    for (const int rank : {0, size_ - 1}) EXPECT_EQ(own().arrive(rank), Arrival::stale);
    EXPECT_TRUE(own().ranks().none());
    EXPECT_TRUE(words(generation + 1).ranks().none());
  }
}

// 15 bits of rounds, 16 of generations.
TEST_P(ReadyWordsOf, RoundsAndGenerationsWrapAround) {
  if (size_ > 5) return;
  for (int round = 0; round < 70'000; ++round) {
    arrive_all(0, round % size_);
    words(0).end_round();
  }
  for (std::uint32_t generation = 0; generation < 65536; ++generation) {
    ASSERT_TRUE(words(generation).retire(true));
  }
  EXPECT_EQ(words(65535).arrive(0), Arrival::stale);
  arrive_all(0, 0);
}

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

std::vector<std::byte> payload(std::size_t length, std::uint64_t number) {
  std::vector<std::byte> bytes(length);
  for (std::size_t i = 0; i < length; ++i) bytes[i] = static_cast<std::byte>(number * 31 + i);
  return bytes;
}

/// The ids of the next batch; nothing where there is none, or a payload.
Ids next_ids(NodeControlBlock& control_block) {
  const auto batch = test::next_batch(control_block);
  return batch ? batch->ids : Ids{};
}

TEST(ControlBlock, TheLastArriverAppendsTheIdToTheLog) {
  SharedControlBlock blocks(shape(3, true));
  const Id id = make_id(5, 0);
  const std::vector ranks = {4, 6, 7};
  EXPECT_EQ(blocks[0].last_arrival(id, ranks), LastArrival());
  EXPECT_EQ(blocks[2].arrive(id, at(128), 5ms), Arrival::waiting);
  EXPECT_EQ(blocks[0].last_arrival(id, ranks).late, LastArrival::kAlone);
  EXPECT_EQ(blocks[0].arrive(id, at(64), 2ms), Arrival::waiting);
  EXPECT_FALSE(blocks[0].log_has_pending_work());
  EXPECT_EQ(blocks[1].arrive(id, at(192), 9ms), Arrival::complete);
  for (int r = 0; r < 3; ++r) {
    EXPECT_TRUE(blocks[r].log_has_pending_work());
    EXPECT_EQ(next_ids(blocks[r]), Ids{id});
    EXPECT_FALSE(blocks[r].log_has_pending_work());
    EXPECT_EQ(blocks[r].last_arrival(id, ranks), (LastArrival{6, 9ms, 4ms}));
  }
  EXPECT_FALSE(blocks[0].pop_arrival().has_value());
}

TEST(ControlBlock, TheLeaderLearnsOnceThatARankIsResized) {
  SharedControlBlock blocks(shape(2, false));
  const Id id = make_id(3, 0);
  for (const bool resized : {true, false}) {
    blocks[1].arrive(id, at(0), {}, resized);
    blocks[0].arrive(id, at(64));
    ASSERT_EQ(blocks[0].pop_arrival(), id);
    EXPECT_EQ(blocks[0].take_resized(id), resized);
    EXPECT_FALSE(blocks[0].take_resized(id));
  }
}

TEST(ControlBlock, ControlPayloadsKeepTheirPlaceInTheLog) {
  SharedControlBlock blocks(shape(1, true));
  blocks[0].arrive(1, at(0));
  ASSERT_TRUE(blocks[0].push_control(payload(30, 7)));
  ASSERT_TRUE(blocks[0].push_control({}));
  blocks[0].arrive(2, at(0));
  EXPECT_EQ(next_ids(blocks[0]), Ids{1});
  const auto control = test::next_batch(blocks[0]);
  ASSERT_TRUE(control.has_value());
  EXPECT_EQ(control->kind, LogBatch::Kind::control);
  EXPECT_EQ(control->payload, payload(30, 7));
  EXPECT_EQ(test::next_batch(blocks[0])->payload.size(), 0u);
  EXPECT_EQ(next_ids(blocks[0]), Ids{2});
}

TEST(ControlBlock, AFullControlRingRefusesUntilTheSlowestReaderHasCaughtUp) {
  SharedControlBlock blocks(shape(2, false));
  int pushed = 0;
  while (blocks[0].push_control(payload(300, static_cast<std::uint64_t>(pushed)))) ++pushed;
  EXPECT_EQ(pushed, 3);
  EXPECT_TRUE(test::next_batch(blocks[0]).has_value());
  EXPECT_FALSE(blocks[0].push_control(payload(300, 3))) << "rank 1 has read nothing";
  EXPECT_EQ(test::next_batch(blocks[1])->payload, payload(300, 0));
  EXPECT_TRUE(blocks[0].push_control(payload(300, 3))) << "it crosses the end of the ring";
  EXPECT_FALSE(blocks[0].push_control(payload(300, 4)));
  for (std::uint64_t value = 1; value <= 3; ++value) {
    for (const int r : {0, 1}) EXPECT_EQ(test::next_batch(blocks[r])->payload, payload(300, value));
  }
  EXPECT_FALSE(blocks[0].push_control(payload(1001, 0))) << "longer than the ring";
}

TEST(ControlBlock, TheLogHoldsABoundedNumberOfControlPayloads) {
  SharedControlBlock blocks(shape(1, true));
  int pushed = 0;
  while (pushed < 100000 && blocks[0].push_control({})) ++pushed;
  EXPECT_EQ(pushed, 1000) << "each takes a byte of the ring";
  EXPECT_TRUE(test::next_batch(blocks[0]).has_value());
  EXPECT_TRUE(blocks[0].push_control({}));
  EXPECT_FALSE(blocks[0].push_control({}));
}

// Whatever the page holds, a reader stays inside of it (AddressSanitizer checks) and terminates.
TEST(ControlBlock, ADamagedPageIsAnErrorOrNothing) {
  auto random = test::generator();
  ControlBlockShape small = shape(2, false);
  small.id_capacity = 16;
  small.control_bytes = 256;
  int errors = 0;
  for (int round = 0; round < 3000; ++round) {
    SharedControlBlock blocks(small);
    ASSERT_TRUE(blocks[0].push_control(payload(100, 1)));
    blocks[0].push_run(Ids{3, 4, 5});
    ASSERT_TRUE(blocks[1].push_mail(payload(50, 2)));
    // Counters, entries, lengths.
    std::vector<std::byte*> words;
    for (std::size_t i = 0; i + 8 <= blocks.memory().size(); i += 8) {
      const auto word = blocks.memory().subspan(i, 8);
      if (std::ranges::any_of(word, [](std::byte b) { return b != std::byte{}; })) {
        words.push_back(word.data());
      }
    }
    for (int i = 0; i < 3; ++i) {
      std::uint64_t word = random() % 3 == 0 ? random() : random() % 300;
      if (random() % 8 == 0) word = ~std::uint64_t{0} - random() % 8;
      std::memcpy(words[random() % words.size()], &word, sizeof word);
    }
    try {
      for (int i = 0; i < 100; ++i) {
        const auto batch = test::next_batch(blocks[1]);
        if (!batch) break;
        ASSERT_LE(batch->ids.size(), 16u + 1024u);
        ASSERT_LE(batch->payload.size(), 256u);
      }
      for (int i = 0; i < 100 && blocks[0].pop_mail(1); ++i) continue;
      blocks[0].pop_arrival();
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
    SharedControlBlock blocks(shape(kRanks, single_node));
    std::vector<Ids> read(kRanks);
    using Counts = std::array<std::uint64_t, kIds>;
    std::array<Counts, kRanks> arrived{}, seen{};
    while (read[0].size() < 20000) {
      const int r = static_cast<int>(random() % kRanks);
      const auto rank = static_cast<std::size_t>(r);
      const Id id = static_cast<Id>(random() % kIds);
      if (random() % 4 != 0) {
        if (std::ranges::any_of(seen, [&](const Counts& c) { return c[id] < arrived[rank][id]; })) {
          continue;
        }
        blocks[r].arrive(id, at(++arrived[rank][id]));
        continue;
      }
      Ids decided;
      while (const auto arrival = blocks[0].pop_arrival()) decided.push_back(*arrival);
      blocks[0].push_run(decided);
      for (const Id run : next_ids(blocks[r])) {
        read[rank].push_back(run);
        const Location place = at(++seen[rank][run]);
        for (int peer = 0; peer < kRanks; ++peer) ASSERT_EQ(blocks[r].location(run, peer), place);
      }
    }
    const std::size_t common = std::ranges::min(read, {}, &Ids::size).size();
    for (Ids& of_rank : read) {
      of_rank.resize(common);
      ASSERT_EQ(of_rank, read[0]);
    }
  }
}

using Bytes = std::vector<std::byte>;

TEST(Mailbox, RandomTrafficAgainstAQueue) {
  auto random = test::generator();
  for (const std::size_t capacity : {4u, 5u, 37u, 256u}) {
    MailboxHead head{};
    Bytes memory(capacity);
    Mailbox mailbox(&head, memory.data(), capacity);
    std::deque<Bytes> model;
    std::size_t used = 0;
    for (std::uint64_t n = 0; n < 20000; ++n) {
      if (random() % 2 == 0) {
        const Bytes message = payload(random() % (capacity + 3), n);
        const bool room = used + 4 + message.size() <= capacity;
        ASSERT_EQ(mailbox.try_push(message), room);
        if (!room) continue;
        model.push_back(message);
        used += 4 + message.size();
      } else {
        ASSERT_EQ(mailbox.empty(), model.empty());
        const auto message = mailbox.pop();
        ASSERT_EQ(message.has_value(), !model.empty());
        if (!message) continue;
        ASSERT_EQ(*message, model.front());
        used -= 4 + model.front().size();
        model.pop_front();
      }
    }
  }
}

TEST(Mailbox, WhatCannotBeIsAnError) {
  for (const std::uint32_t length : {21u, 64u, 200u, ~0u}) {
    MailboxHead head{};
    Bytes memory(64);
    Mailbox mailbox(&head, memory.data(), memory.size());
    ASSERT_TRUE(mailbox.try_push(payload(16, 1)));
    std::memcpy(memory.data(), &length, sizeof length);
    EXPECT_THROW(mailbox.pop(), Error) << "length " << length;
  }
  for (const std::uint64_t written : {std::uint64_t{1}, std::uint64_t{3}, std::uint64_t{65},
                                      std::uint64_t{1} << 40, ~std::uint64_t{0}}) {
    MailboxHead head{};
    Bytes memory(64, std::byte{255});
    head.written.store(written);
    EXPECT_THROW(Mailbox(&head, memory.data(), memory.size()).pop(), Error) << written;
  }
  Bytes memory(64);
  const ByteRing ring(memory.data(), memory.size());
  EXPECT_EQ(ring.read(60, 64).size(), 64u);
  EXPECT_THROW(ring.read(0, 65), Error);
  EXPECT_FALSE(ring.fits(10, 74, 65)) << "a reader's position that is ahead";
}

TEST(SharedNote, HoldsTheLastText) {
  const auto note = std::make_unique<SharedNote>();
  EXPECT_FALSE(note->read());
  for (const std::size_t length : {0, 1, 7, 8, 9, 95, 96, 200}) {
    const std::string text(length, 'x');
    note->write(text, 5s, ProcessSet(3));
    EXPECT_EQ(note->read().value().text, text.substr(0, SharedNote::kMostBytes));
    EXPECT_EQ(note->read().value().time, 5s);
    EXPECT_EQ(note->read().value().set, ProcessSet(3));
  }
  note->clear();
  EXPECT_FALSE(note->read());
}

TEST(FirstCause, IsTheFirstThatIsPublishedAndReadWithinItsBounds) {
  const auto memory = std::make_unique<FirstCause>();
  FirstCause& cause = *memory;
  EXPECT_FALSE(cause.is_published());
  EXPECT_FALSE(cause.get());
  const std::string text = "begin" + std::string(9000, 'x');
  EXPECT_TRUE(cause.publish(Error(ErrorCode::timeout, text, 3, std::string(3000, 't'))));
  EXPECT_FALSE(cause.publish(Error(ErrorCode::transport, "second", 1, "g")));
  EXPECT_TRUE(cause.is_published());
  const Error error = cause.get().value();
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_TRUE(std::string_view(error.what()).starts_with("begin"));
  EXPECT_LE(std::string(error.what()).size(), cause.text.size());
  EXPECT_EQ(error.rank(), 3);
  EXPECT_EQ(error.tensor(), std::string(cause.tensor.size(), 't'));
  // Damaged.
  cause.code = 77;
  cause.text_bytes = 0xffffffffU;
  cause.tensor_bytes = 1U << 20;
  EXPECT_EQ(cause.get().value().code(), ErrorCode::transport);
  EXPECT_LE(cause.get()->tensor().size(), cause.tensor.size());
  // One who dies while it publishes leaves nothing.
  cause.state.store(FirstCause::kPublishing);
  EXPECT_FALSE(cause.publish(Error(ErrorCode::transport, "own")));
  EXPECT_FALSE(cause.get());
}

}  // namespace
}  // namespace hora::internal
