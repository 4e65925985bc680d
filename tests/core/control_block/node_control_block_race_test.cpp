// Ranks as threads on one control block: one order of everything for all readers, and no lost
// wake-up.
#include <gtest/gtest.h>
#include <hora/error.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>

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

struct Reading {
  std::vector<std::vector<Id>> batches;  ///< a control payload: one id, its number + kControl
  bool slept_through = false;
};
constexpr Id kControl = 1000;

ControlBlockShape shape(bool single_node) {
  return {.local_size = kRanks,
          .id_capacity = 16,
          .single_node = single_node,
          .mailbox_bytes = 512,
          .control_bytes = 512};
}

/// One rank: all ids once a round in random order, the next round when all have run.
class Racer {
 public:
  Racer(SharedControlBlock& all, int rank, int rounds, std::uint64_t seed)
      : control_block_(all[rank]), rank_(rank), rounds_(rounds), random_(seed + rank) {}

  Reading run() {
    for (int round = 0; round < rounds_; ++round) {
      std::vector<Id> order(kIds);
      for (Id id = 0; id < kIds; ++id) order[id] = id;
      std::shuffle(order.begin(), order.end(), random_);
      for (const Id id : order) {
        if (control_block_.arrive(
                id, {.window = 0, .reserved = 0, .offset = offset(round, rank_, id)}) ==
            NodeControlBlock::Arrival::complete) {
          control_block_.signal_others();
        }
        if (random_() % 4 == 0) read(round);
      }
      while (ran_ < kIds) {
        if (!read(round)) sleep([&] { return has_pending_work(); }, 0);
      }
      // No rank may be ready again before all have read.
      control_block_.set_done(static_cast<std::uint64_t>(round) + 1);
      const auto awaited = static_cast<std::uint64_t>(round) + 1;
      while (control_block_.done_by_all() < awaited) {
        lead(round);
        sleep([&] { return control_block_.done_by_all() >= awaited || leads_news(); }, awaited);
      }
      ran_ = 0;
    }
    return reading_;
  }

 private:
  static constexpr Id kIds = 6;
  static std::uint64_t offset(int round, int rank, Id id) {
    return static_cast<std::uint64_t>((round * kRanks + rank) * 16) + id;
  }
  bool leads_news() const { return rank_ == 0 && control_block_.leader_has_pending_work(); }
  bool has_pending_work() const { return control_block_.log_has_pending_work() || leads_news(); }

  /// The leader of several nodes decides at once whatever its node is ready for; now and then it
  /// puts a payload in between.
  bool lead(int round) {
    if (rank_ != 0) return false;
    std::vector<Id> decided;
    while (const auto id = control_block_.pop_arrival()) decided.push_back(*id);
    control_block_.push_run(decided);
    bool any = !decided.empty();
    if (controls_ <= round && random_() % 3 == 0) {
      const std::vector<std::byte> bytes(1 + static_cast<std::size_t>(controls_) % 97,
                                         static_cast<std::byte>(controls_));
      if (control_block_.push_control(bytes)) {
        ++controls_;
        any = true;
      }
    }
    if (any) control_block_.signal_others();
    return any;
  }

  bool read(int round) {
    bool any = lead(round);
    while (const auto batch = control_block_.next_batch()) {
      any = true;
      if (batch->kind == LogBatch::Kind::control) {
        const Id number = static_cast<Id>(reading_controls_++);
        EXPECT_EQ(batch->payload, std::vector<std::byte>(1 + number % 97, std::byte(number)));
        reading_.batches.push_back({kControl + number});
        continue;
      }
      for (const Id id : batch->ids) {
        ++ran_;
        for (int peer = 0; peer < kRanks; ++peer) {
          EXPECT_EQ(control_block_.location(id, peer).offset, offset(round, peer, id));
        }
      }
      reading_.batches.push_back(batch->ids);
    }
    return any;
  }

  template <class HasNews>
  void sleep(HasNews&& has_pending_work, std::uint64_t awaited) {
    const auto begin = Clock::now();
    control_block_.await_done(awaited);
    control_block_.wakeup_flags().sleep(NodeControlBlock::Sleeper::engine, [&] {
      return has_pending_work() ? WakeupFlags::kNoSleep : kLostWakeUp;
    });
    reading_.slept_through |= Clock::now() - begin > kLostWakeUp / 2;
  }

  NodeControlBlock& control_block_;
  int rank_;
  int rounds_;
  std::mt19937_64 random_;
  Id ran_ = 0;
  int controls_ = 0;
  int reading_controls_ = 0;
  Reading reading_;
};

void race(bool single_node, int rounds) {
  SharedControlBlock control_block(shape(single_node));
  std::vector<Reading> readings(kRanks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        readings[static_cast<std::size_t>(rank)] =
            Racer(control_block, rank, rounds, test::seed()).run();
      });
    }
  }
  for (const Reading& reading : readings) {
    EXPECT_FALSE(reading.slept_through) << "a wake-up was lost";
    // A rank may leave before it has read the leader's last payloads.
    const std::size_t common = std::min(reading.batches.size(), readings[0].batches.size());
    ASSERT_GE(common, static_cast<std::size_t>(rounds));
    for (std::size_t i = 0; i < common; ++i) {
      ASSERT_EQ(reading.batches[i], readings[0].batches[i]) << "batch " << i;
    }
  }
}

TEST(ControlBlockRace, AllReadersSeeOneOrderInASingleNode) {
  race(/*single_node=*/true, 2000);
}

TEST(ControlBlockRace, AllReadersSeeOneOrderOfALeaderOfSeveralNodes) {
  race(/*single_node=*/false, 2000);
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
  auto* words = new (page) std::atomic<std::uint32_t>[2];
  words[0].store(0);
  words[1].store(0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    words[1].store(1);
    while (words[0].load() == 0) futex_wait(words[0], 0, kLostWakeUp);
    ::_exit(0);
  }
  while (words[1].load() == 0) std::this_thread::sleep_for(1ms);
  std::this_thread::sleep_for(20ms);  // by now it sleeps, most likely
  const auto begin = Clock::now();
  words[0].store(1);
  futex_wake(words[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_LT(Clock::now() - begin, kLostWakeUp / 2);
  ::munmap(page, 4096);
}

std::vector<std::byte> message_of(std::uint64_t number) {
  return std::vector<std::byte>(number % 40, static_cast<std::byte>(number));
}

TEST(Mailbox, OneWriterAndOneReaderAtATime) {
  MailboxHead head{};
  std::vector<std::byte> memory(101);
  Mailbox mailbox(&head, memory.data(), memory.size());
  constexpr std::uint64_t kMessages = 20000;
  const std::jthread writer([&] {
    for (std::uint64_t n = 0; n < kMessages; ++n) {
      while (!mailbox.try_push(message_of(n))) std::this_thread::yield();
    }
  });
  for (std::uint64_t n = 0; n < kMessages;) {
    const auto message = mailbox.pop();
    if (!message) {
      std::this_thread::yield();
      continue;
    }
    ASSERT_EQ(*message, message_of(n));
    ++n;
  }
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
    const auto memory = std::make_unique<FirstCauseMemory>();
    std::atomic<int> first{0};
    std::vector<std::jthread> threads;
    for (int r = 0; r < 4; ++r) {
      threads.emplace_back([&, r] {
        FirstCause own(*memory);
        const std::string text(100 + static_cast<std::size_t>(r), static_cast<char>('a' + r));
        if (own.publish(Error(ErrorCode::transport, text, r))) first.fetch_add(1);
        const Error seen = own.get().value();
        EXPECT_EQ(std::string(seen.what()), std::string(100 + static_cast<std::size_t>(seen.rank()),
                                                        static_cast<char>('a' + seen.rank())));
      });
    }
    threads.clear();
    EXPECT_EQ(first.load(), 1);
  }
}

}  // namespace
}  // namespace hora::internal
