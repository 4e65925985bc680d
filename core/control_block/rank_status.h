/// Notes of a node's ranks for the others on its shared page: their last actions, which of them
/// logs a stall, and why their engines have ended.
#pragma once

#include <hora/error.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "core/control_block/atomic.h"
#include "core/control_block/tensor_id.h"

namespace hora::internal {

/// A short text with a time, all zero at first: a sequence lock (H.-J. Boehm, Can Seqlocks Get
/// Along With Programming Language Memory Models?, 2012), `version` odd while it is written. No
/// rank depends on it, so it is not of the types that the model checker explores.
class SharedNote {
 public:
  static constexpr std::size_t kMostBytes = 96;
  struct Note {
    std::string text;  ///< cut to kMostBytes
    std::chrono::nanoseconds time{};
  };

  /// Left out where another thread writes just now.
  void write(std::string_view text, std::chrono::nanoseconds time) {
    std::uint32_t version = version_.load(std::memory_order_relaxed);
    if (version % 2 != 0 || !version_.compare_exchange_strong(version, version + 1)) return;
    const std::size_t bytes = std::min(text.size(), kMostBytes);
    for (std::size_t at = 0; at < bytes; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + at, std::min<std::size_t>(8, bytes - at));
      words_[at / 8].store(word, std::memory_order_release);
    }
    time_.store(time.count(), std::memory_order_release);
    bytes_.store(static_cast<std::uint32_t>(bytes), std::memory_order_release);
    version_.store(version + 2, std::memory_order_release);
  }
  /// Nothing from now on.
  void clear() { write({}, {}); }
  /// Nothing where there is none, or where its writer has stopped within it.
  std::optional<Note> read() const {
    constexpr int kTries = 100;
    for (int i = 0; i < kTries; ++i) {
      const std::uint32_t version = version_.load(std::memory_order_acquire);
      if (version % 2 != 0) continue;
      const std::size_t bytes =
          std::min<std::size_t>(bytes_.load(std::memory_order_acquire), kMostBytes);
      const std::chrono::nanoseconds time(time_.load(std::memory_order_acquire));
      std::array<std::uint64_t, kMostBytes / 8> words;
      for (std::size_t w = 0; w < words.size(); ++w) {
        words[w] = words_[w].load(std::memory_order_acquire);
      }
      if (version_.load(std::memory_order_relaxed) != version) continue;
      if (time.count() == 0) return std::nullopt;
      std::string text(bytes, '\0');
      std::memcpy(text.data(), words.data(), bytes);
      return Note{std::move(text), time};
    }
    return std::nullopt;
  }

 private:
  std::atomic<std::uint32_t> version_;
  std::atomic<std::uint32_t> bytes_;
  std::atomic<std::int64_t> time_;
  std::array<std::atomic<std::uint64_t>, kMostBytes / 8> words_;
};

/// The last actions of a rank, whatever process sets it is in. Times are of the host's monotonic
/// clock. Thread rule: any thread of that rank writes, any of the node reads.
struct alignas(64) RankStatus {
  SharedNote submitted;                ///< the last name that it has submitted
  SharedNote waits_for;                ///< where a thread of it sleeps until this is complete
  std::atomic<std::int64_t> departed;  ///< when it has announced its shutdown(), in ns; 0: has not
};

/// Which ranks of a node wait for a stalled collective of one process set, and when one of them has
/// last logged it; on the set's control block, all zero at first. Times are those of the host's
/// monotonic clock. Thread rule: any thread of any rank.
class StallBoard {
 public:
  /// This local rank has a stall to log, or has none.
  void set_waiting(int local_rank, bool on) {
    waiting_[static_cast<std::size_t>(local_rank)].store(on);
  }
  /// No local rank below this one has.
  bool is_lowest(int local_rank) const {
    return std::none_of(waiting_.begin(), waiting_.begin() + local_rank,
                        [](const std::atomic<bool>& waits) { return waits.load(); });
  }
  /// True for one rank at a time: it logs, and no rank of the node does for `interval`. Another
  /// rank has `head_start` to do so first.
  bool claim(std::chrono::nanoseconds time, std::chrono::nanoseconds interval,
             std::chrono::nanoseconds head_start = {}) {
    std::int64_t next = next_report_.load();
    return (time - head_start).count() >= next &&
           next_report_.compare_exchange_strong(next, (time + interval).count());
  }

  /// The leader has got a message from the leader above it.
  void note_heard(std::chrono::nanoseconds time) {
    heard_.store(time.count(), std::memory_order_relaxed);
  }
  /// When that was last; zero: never.
  std::chrono::nanoseconds heard() const {
    return std::chrono::nanoseconds(heard_.load(std::memory_order_relaxed));
  }

 private:
  std::array<std::atomic<bool>, kMaxLocalSize> waiting_;
  std::atomic<std::int64_t> next_report_;
  std::atomic<std::int64_t> heard_;
};

/// All zero at first. The texts are read only once `state` says that they are whole.
struct alignas(64) FirstCauseMemory {
  enum State : std::uint32_t { kNone = 0, kPublishing = 1, kPublished = 2 };

  Atomic<std::uint32_t> state;
  std::uint32_t code;
  std::int32_t rank;
  std::uint32_t text_bytes;
  std::uint32_t tensor_bytes;
  std::array<char, 4096> text;
  std::array<char, 1024> tensor;
};

/// A rank that learns why the job ends (an error of a transport, a time limit, a damaged page)
/// publishes it here and wakes its node: every rank of the node then ends with the same error,
/// whichever cause of its own it finds later. One that dies while it publishes leaves nothing
/// behind: the others find a cause of their own. Thread rule: any thread of any rank.
class FirstCause {
 public:
  explicit FirstCause(FirstCauseMemory& memory) : memory_(memory) {}

  /// False where another cause has been published, or is being published. Longer texts than the
  /// page has room for are cut.
  bool publish(const Error& error);
  /// There is one. A load of a line that is written once.
  bool is_published() const {
    return memory_.state.load(kWakeOrder) == FirstCauseMemory::kPublished;
  }
  /// Nothing where none is published; waits for a moment where one is being published. What it says
  /// is checked: another process has written it.
  std::optional<Error> get() const;

 private:
  FirstCauseMemory& memory_;
};

}  // namespace hora::internal
