/// What each rank of a node did last, for those that wait for it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

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

/// What one rank is doing, whatever process sets it is in, on the world's control block. Times are
/// those of the host's monotonic clock. Thread rule: any thread of that rank writes, any of the
/// node reads.
struct alignas(64) RankStatus {
  SharedNote submitted;                ///< the last name that it has submitted
  SharedNote waits_for;                ///< where a thread of it sleeps until this is complete
  std::atomic<std::int64_t> departed;  ///< when it has announced its shutdown(), in ns; 0: has not
};

}  // namespace hora::internal
