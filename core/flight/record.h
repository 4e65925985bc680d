/// The memory of a rank's flight record: the last collectives and what the rank is doing, written
/// by stores alone, so that another process that maps the same memory can read it at any moment,
/// also after the rank was killed.
///
/// Under horarun the rank's guard, its parent process, makes the memory (a memfd) and reads it;
/// otherwise it is the rank's own. Both are processes of one host, and their times are of
/// CLOCK_MONOTONIC in nanoseconds where nothing else is said; 0: has not happened.
///
/// Nothing in it is trusted by its reader (record_reader.h): the writer may be killed between two
/// stores, or be broken.
#pragma once

#include <hora/printable.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "core/base/checked.h"

namespace hora::internal {

/// Of RecordedCause::code.
inline constexpr std::uint32_t kFailedElsewhere = 0x100;

inline constexpr auto kRelaxed = std::memory_order_relaxed;
inline constexpr std::uint64_t kRecordMagic = 0x64726f6365526148;  // "HaRecord"
/// Of this layout.
inline constexpr std::uint32_t kRecordVersion = 2;
inline constexpr std::size_t kRecordedCollectives = 1000;

/// The path of the memory that the guard has made, "/proc/<guard>/fd/<n>"; unset: memory of the
/// rank's own. For benchmarks of what it costs: "off": no record, and no ledger of arrivals
/// (negotiation/arrivals.h); "watched": the rank's own memory, as under `horarun --watch`.
inline constexpr const char* kRecordVariable = "HORARUN_RECORD";

enum class RecordState : std::uint32_t {
  starting = 0,  ///< hora::init is under way, or was never called
  initialised = 1,
  in_shutdown = 2,
  shut_down = 3,
  failed = 4,  ///< there is a cause
};
template <>
inline constexpr RecordState last_of<RecordState> = RecordState::failed;
/// "starting", "initialised", "in shutdown", "shut down", "failed".
std::string_view name_of(RecordState state) noexcept;

enum class RecordOutcome : std::uint32_t { open = 0, done = 1, failed = 2 };
template <>
inline constexpr RecordOutcome last_of<RecordOutcome> = RecordOutcome::failed;

/// Bytes of a text, those behind its end 0. A reader that meets a writer gets a mixture of both.
template <std::size_t Bytes>
using RecordText = std::array<std::atomic<std::uint64_t>, Bytes / 8>;

/// The first bytes that fit, without a part of a character (UTF-8).
inline std::string_view fitting(std::string_view text, std::size_t most) noexcept {
  if (text.size() <= most) return text;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0U) == 0x80U) --most;
  return text.substr(0, most);
}

template <std::size_t Words>
void store_bytes(std::array<std::atomic<std::uint64_t>, Words>& words,
                 const std::array<char, Words * 8>& bytes) noexcept {
  for (std::size_t i = 0; i < Words; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i * sizeof word, sizeof word);
    words[i].store(word, std::memory_order_release);
  }
}

template <std::size_t Words>
void store_text(std::array<std::atomic<std::uint64_t>, Words>& words,
                std::string_view text) noexcept {
  std::array<char, Words * 8> bytes{};
  const std::string_view part = fitting(text, bytes.size());
  std::copy(part.begin(), part.end(), bytes.begin());
  store_bytes(words, bytes);
}

/// Printable, whatever is there.
template <std::size_t Words>
std::string text_of(const std::array<std::atomic<std::uint64_t>, Words>& words) {
  std::array<char, Words * 8> bytes{};
  for (std::size_t i = 0; i < Words; ++i) {
    const std::uint64_t word = words[i].load(std::memory_order_acquire);
    std::memcpy(bytes.data() + i * sizeof word, &word, sizeof word);
  }
  const auto end = std::find(bytes.begin(), bytes.end(), '\0');
  return printable({bytes.data(), static_cast<std::size_t>(end - bytes.begin())});
}

inline constexpr std::size_t kRecordNameBytes = 56;
inline constexpr std::size_t kRecordCauseBytes = 512;
inline constexpr std::size_t kRecordPhaseBytes = 128;
inline constexpr std::size_t kRecordHostBytes = 256;
inline constexpr std::size_t kRecordVersionBytes = 32;

/// One collective. Its ticket (0, 1, 2, ... in the order of submission) is its place: entry
/// `ticket % kRecordedCollectives`. `begun` is written first and `written` last, both with the low
/// 32 bits of ticket + 1: where they differ, the entry is half-written, and dropped (a seqlock;
/// Boehm, "Can seqlocks get along with programming language memory models?", MSPC 2012). What is
/// stored between them is released and acquired one by one, which orders it against both marks
/// without a fence. What happens later to the collective are single stores into the entry, which
/// may come in any order.
struct alignas(64) RecordEntry {
  std::atomic<std::uint32_t> begun;
  std::atomic<std::uint32_t> written;
  /// 1, 2, ... among the decided collectives of its set, the same on all its ranks; 0: not decided.
  std::atomic<std::uint64_t> number;
  std::atomic<std::uint32_t> set;
  std::atomic<std::uint32_t> peers;  ///< ranks of the set
  /// Bytes, from the lowest: OperationKind, ReduceOp, DataType, DeviceKind.
  std::atomic<std::uint32_t> what;
  std::atomic<std::uint32_t> outcome;  ///< RecordOutcome
  std::atomic<std::uint64_t> bytes;    ///< of this rank's tensor
  std::atomic<std::int64_t> submitted;
  std::atomic<std::int64_t> ready;    ///< decided
  std::atomic<std::int64_t> started;  ///< its data; 0 also where this rank moves none
  std::atomic<std::int64_t> done;     ///< or failed
  RecordText<kRecordNameBytes> name;
};
static_assert(sizeof(RecordEntry) == 128);

struct RecordHeader {
  // Written by the process that makes the memory, before anything else.
  std::atomic<std::uint64_t> magic;
  std::atomic<std::uint32_t> version;
  std::atomic<std::int64_t> guard;  ///< its process; 0: none

  // Written by the rank, from hora::init on.
  std::atomic<std::uint32_t> state;  ///< RecordState
  std::atomic<std::int64_t> pid;     ///< 0: no rank has come yet
  std::atomic<std::int32_t> rank;    ///< -1: not known yet, and so the following
  std::atomic<std::int32_t> size;
  std::atomic<std::int32_t> node;
  std::atomic<std::int32_t> local_rank;
  std::atomic<std::int64_t> begin;       ///< of hora::init
  std::atomic<std::int64_t> begin_wall;  ///< the same moment by CLOCK_REALTIME
  RecordText<kRecordVersionBytes> hora_version;
  RecordText<kRecordHostBytes> host;

  // One cache line by submitting threads, one by the thread that makes progress.
  alignas(64) std::atomic<std::uint64_t> next;          ///< ticket of the next collective
  std::atomic<std::int64_t> submitted_at;               ///< the last one
  alignas(64) std::atomic<std::int64_t> progressed_at;  ///< the last decision, start or end
  std::atomic<std::int32_t> blocked;                    ///< threads that wait for results

  /// The first error, written once: 0 none, 1 under way, 2 complete.
  alignas(64) std::atomic<std::uint32_t> cause_state;
  std::atomic<std::uint32_t> cause_code;  ///< RecordedCause::code
  std::atomic<std::int64_t> cause_at;
  RecordText<kRecordCauseBytes> cause;

  /// A seqlock: odd while it is written.
  alignas(64) std::atomic<std::uint32_t> phase_sequence;
  std::atomic<std::int64_t> phase_at;
  RecordText<kRecordPhaseBytes> phase;
};

inline constexpr std::size_t kRecordedArrivals = 64;
inline constexpr std::size_t kRecordedPhases = 8;
inline constexpr std::size_t kRecordPhaseNameBytes = 32;

struct RecordArrivalsRow {
  std::atomic<std::int32_t> rank;
  std::atomic<std::uint32_t> phase;
  std::atomic<std::uint64_t> last;
  std::atomic<std::int64_t> median;
  std::atomic<std::int64_t> p99;
};

/// The root's: who came last to the world's collectives, the ranks that did so most often first.
struct RecordArrivals {
  /// By the guard, before the rank starts: 1 where somebody reads this. 0: the rank writes nothing.
  alignas(64) std::atomic<std::uint32_t> wanted;
  /// A seqlock: odd while the following is written; 0: never was.
  std::atomic<std::uint32_t> sequence;
  std::atomic<std::int64_t> at;
  std::atomic<std::uint64_t> decisions;
  std::atomic<std::uint64_t> steps;
  std::atomic<std::uint32_t> count;  ///< of the rows
  std::array<RecordText<kRecordPhaseNameBytes>, kRecordedPhases> phases;
  std::array<RecordArrivalsRow, kRecordedArrivals> rows;
};

struct RecordLayout {
  RecordHeader header;
  RecordArrivals arrivals;
  alignas(4096) std::array<RecordEntry, kRecordedCollectives> entries;
};
inline constexpr std::size_t kRecordBytes = sizeof(RecordLayout);
static_assert(kRecordBytes <= std::size_t{160} << 10);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace hora::internal
