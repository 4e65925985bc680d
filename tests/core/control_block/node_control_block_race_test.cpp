// Ranks as threads on one control block: one order of everything for all readers, and no lost
// wake-up.
#include <gtest/gtest.h>
#include <hora/error.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <new>
#include <numeric>

#include "tests/core/control_block/shared_control_block.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using test::SharedControlBlock;

constexpr int kRanks = 4;
/// No sleep should last this long: some rank always has something to do.
constexpr auto kLostWakeUp = 10s;

constexpr Id kIds = 6;

/// One rank: all ids once a round in random order, the next round when all have run. Rank 0 leads:
/// of several nodes it decides at once whatever its node is ready for, and puts payloads between.
class Racer {
 public:
  Racer(SharedControlBlock& all, int rank)
      : own_(all[rank]), rank_(rank), random_(test::generator(static_cast<std::uint64_t>(rank))) {}

  /// The ids of all batches, one behind the other; kIds for a payload.
  std::vector<Id> run(std::uint64_t rounds) {
    std::vector<Id> order(kIds);
    std::iota(order.begin(), order.end(), Id{0});
    for (round_ = 0; round_ < rounds; ++round_) {
      std::ranges::shuffle(order, random_);
      for (const Id id : order) {
        if (own_.arrive(id, place(rank_, id)) == NodeControlBlock::Arrival::complete) {
          own_.signal_others();
        }
        if (random_() % 4 == 0) read();
      }
      for (; ran_ < kIds; read()) sleep([&] { return own_.log_has_pending_work(); }, 0);
      ran_ = 0;
      // No rank may be ready again before all have read.
      const auto all_have = [&] { return own_.done_by_all() > round_; };
      own_.set_done(round_ + 1);
      for (; !all_have(); lead()) sleep(all_have, round_ + 1);
    }
    return seen_;
  }

 private:
  Location place(int rank, Id id) const {
    return {.window = id, .reserved = 0, .offset = round_ * kRanks + static_cast<unsigned>(rank)};
  }
  static std::vector<std::byte> payload(std::size_t number) {
    return std::vector<std::byte>(1 + number % 97, static_cast<std::byte>(number));
  }
  void lead() {
    if (rank_ != 0) return;
    std::vector<Id> decided;
    while (const auto id = own_.pop_arrival()) decided.push_back(*id);
    own_.push_run(decided);
    const bool pushed = pushed_ <= round_ && own_.push_control(payload(pushed_));
    if (pushed) ++pushed_;
    if (pushed || !decided.empty()) own_.signal_others();
  }
  void read() {
    lead();
    while (const auto batch = test::next_batch(own_)) {
      if (batch->kind == LogBatch::Kind::control) {
        EXPECT_EQ(batch->payload, payload(payloads_++));
        seen_.push_back(kIds);
      }
      for (const Id id : batch->ids) {
        ++ran_;
        seen_.push_back(id);
        for (int peer = 0; peer < kRanks; ++peer) {
          EXPECT_EQ(own_.location(id, peer), place(peer, id));
        }
      }
    }
  }
  void sleep(const std::function<bool()>& has_news, std::uint64_t awaited) {
    const auto begin = Clock::now();
    own_.await_done(awaited);
    own_.wakeup_flags().sleep(NodeControlBlock::Sleeper::engine, [&] {
      const bool leads = rank_ == 0 && own_.leader_has_pending_work();
      return has_news() || leads ? WakeupFlags::kNoSleep : kLostWakeUp;
    });
    EXPECT_LT(Clock::now() - begin, kLostWakeUp / 2) << "a wake-up was lost";
  }

  NodeControlBlock& own_;
  const int rank_;
  std::mt19937_64 random_;
  std::uint64_t round_ = 0;
  Id ran_ = 0;
  std::size_t pushed_ = 0, payloads_ = 0;
  std::vector<Id> seen_;
};

TEST(ControlBlockRace, AllReadersSeeOneOrderAndNoWakeUpIsLost) {
  for (const bool single_node : {true, false}) {
    constexpr std::size_t kRounds = 2000;
    SharedControlBlock blocks({.local_size = kRanks,
                               .id_capacity = 16,
                               .single_node = single_node,
                               .mailbox_bytes = 512,
                               .control_bytes = 512});
    std::vector<std::vector<Id>> seen(kRanks);
    test::on_threads(kRanks, [&](int rank) {
      seen[static_cast<std::size_t>(rank)] = Racer(blocks, rank).run(kRounds);
    });
    // A rank may leave before it has read the leader's last payloads.
    const std::size_t common = std::ranges::min(seen, {}, &std::vector<Id>::size).size();
    ASSERT_GE(common, kRounds * kIds);
    for (auto& of_rank : seen) {
      of_rank.resize(common);
      ASSERT_EQ(of_rank, seen[0]);
    }
  }
}

TEST(Futex, DoesNotSleepWhereTheWordHasChangedOrTheTimeIsOver) {
  const std::atomic<std::uint32_t> word{7};
  const auto begin = Clock::now();
  futex_wait(word, 6, kLostWakeUp);
  futex_wait(word, 6, std::nullopt);
  futex_wait(word, 7, 0ns);
  futex_wait(word, 7, -5s);
  futex_wait(word, 7, 20ms);
  EXPECT_GE(Clock::now() - begin, 19ms);
  EXPECT_LT(Clock::now() - begin, kLostWakeUp / 2);
}

TEST(Futex, WakesAnotherProcess) {
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto& word = *new (page) std::atomic<std::uint32_t>(0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    word.store(1);
    while (word.load() == 1) futex_wait(word, 1, kLostWakeUp);
    ::_exit(0);
  }
  while (word.load() == 0) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(20ms);  // by now it sleeps, most likely
  const auto begin = Clock::now();
  word.store(2);
  futex_wake(word);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_LT(Clock::now() - begin, kLostWakeUp / 2);
  ::munmap(page, 4096);
}

TEST(Mailbox, OneWriterAndOneReaderAtATime) {
  MailboxHead head{};
  std::vector<std::byte> memory(101);
  Mailbox mailbox(&head, memory.data(), memory.size());
  test::on_threads(2, [&](int thread) {
    for (std::uint64_t n = 0; n < 20000; ++n) {
      const std::vector<std::byte> message(n % 40, static_cast<std::byte>(n));
      if (thread == 0) {
        while (!mailbox.try_push(message)) std::this_thread::yield();
      } else {
        auto read = mailbox.pop();
        for (; !read; read = mailbox.pop()) std::this_thread::yield();
        ASSERT_EQ(*read, message);
      }
    }
  });
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

TEST(FirstCause, OfManyThatTellAtOnceOneIsFirstAndWhole) {
  for (int round = 0; round < 200; ++round) {
    const auto cause = std::make_unique<FirstCause>();
    std::atomic<int> first{0};
    const auto text_of = [](int rank) {
      return std::string(100 + static_cast<std::size_t>(rank), static_cast<char>('a' + rank));
    };
    test::on_threads(4, [&](int rank) {
      if (cause->publish(Error(ErrorCode::transport, text_of(rank), rank))) first.fetch_add(1);
      const Error seen = cause->get().value();
      EXPECT_EQ(seen.what(), text_of(seen.rank()));
    });
    EXPECT_EQ(first.load(), 1);
  }
}

}  // namespace
}  // namespace hora::internal
