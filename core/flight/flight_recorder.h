/// The flight record of this rank: the last collectives and what the rank is doing, written by
/// stores alone into memory that another process may map and read at any moment, also after the
/// rank was killed; nothing in it is trusted by its reader. Records as values, and as files. And
/// the relay of SIGUSR1 and SIGUSR2, which batch systems send before they end a job: to all ranks.
///
/// Under horarun the rank's guard, its parent process, makes the memory (a memfd) and reads it;
/// else it is the rank's own. Times: nanoseconds of the host's CLOCK_MONOTONIC; 0: not happened.
#pragma once

#include <hora/error.h>
#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "core/base/checked.h"
#include "core/messages/messages.h"
#include "core/negotiation/arrivals.h"

namespace hora::internal {

/// A bit of RecordedCause::code.
inline constexpr std::uint32_t kFailedElsewhere = 0x100;

inline constexpr auto kRelaxed = std::memory_order_relaxed;
inline constexpr std::uint64_t kRecordMagic = 0x64726f6365526148;  // "HaRecord"
inline constexpr std::uint32_t kRecordVersion = 6;                 ///< of the memory
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

enum class RecordOutcome : std::uint32_t { open = 0, done = 1, failed = 2 };
template <>
inline constexpr RecordOutcome last_of<RecordOutcome> = RecordOutcome::failed;

using RecordTime = std::chrono::nanoseconds;
/// The host's CLOCK_MONOTONIC.
inline RecordTime record_now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

/// A value of so many bytes. A reader that meets a writer gets a mixture of both.
template <std::size_t Bytes>
using RecordWords = std::array<std::atomic<std::uint64_t>, Bytes / 8>;

inline constexpr std::size_t kRecordNameBytes = 56;
inline constexpr std::size_t kRecordCauseBytes = 512;
inline constexpr std::size_t kRecordPhaseBytes = 128;
inline constexpr std::size_t kRecordHostBytes = 256;
inline constexpr std::size_t kRecordVersionBytes = 32;

/// One collective, at entry `ticket % kRecordedCollectives`. A seqlock: `begun` is written first
/// and `written` last, both with the low 32 bits of ticket + 1: where they differ, the entry is
/// dropped. All between them is released and acquired one by one, which orders it against both
/// marks without a fence. Later stores are single, and may come in any order.
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
  std::atomic<std::int64_t> ready;     ///< decided
  std::atomic<std::int64_t> started;   ///< its data; 0 also where this rank moves none
  std::atomic<std::int64_t> done;      ///< or failed
  RecordWords<kRecordNameBytes> name;  ///< of texts the bytes behind the end are 0
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
  RecordWords<kRecordVersionBytes> hora_version;
  RecordWords<kRecordHostBytes> host;

  // One cache line by submitting threads, one by the thread that makes progress.
  alignas(64) std::atomic<std::uint64_t> next;          ///< ticket of the next collective
  std::atomic<std::int64_t> submitted_at;               ///< the last one
  alignas(64) std::atomic<std::int64_t> progressed_at;  ///< the last decision, start or end
  std::atomic<std::int32_t> blocked;                    ///< threads that wait for results

  /// The first error, written once: 0 none, 1 under way, 2 complete.
  alignas(64) std::atomic<std::uint32_t> cause_state;
  std::atomic<std::uint32_t> cause_code;  ///< RecordedCause::code
  std::atomic<std::int64_t> cause_at;
  RecordWords<kRecordCauseBytes> cause;

  alignas(64) std::atomic<std::int64_t> phase_at;
  RecordWords<kRecordPhaseBytes> phase;
  std::atomic<std::int64_t> resumed, resumable;  ///< the first and the last step, + 1; 0: none
};

inline constexpr std::size_t kRecordedArrivals = 64;

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
  std::array<RecordWords<sizeof(RankArrivals)>, kRecordedArrivals> rows;
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

/// Move-only. Thread rule: one thread; layout() from any.
class RecordMemory {
 public:
  /// The guard's: a sealed memfd, which cannot be made shorter. Its descriptor closes on exec; a
  /// rank opens path() while the guard lives.
  static tl::expected<RecordMemory, std::string> create();
  /// The rank's, of memory that create() has made. Refused, with the reason: what is missing, of
  /// another size or layout, or in use by another process that lives. Writes nothing.
  static tl::expected<RecordMemory, std::string> open(const std::string& path);
  /// This process's own.
  static tl::expected<RecordMemory, std::string> anonymous();

  RecordMemory(RecordMemory&& other) noexcept { *this = std::move(other); }
  RecordMemory& operator=(RecordMemory&& other) noexcept {
    std::swap(layout_, other.layout_);
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~RecordMemory();

  RecordLayout& layout() const noexcept { return *layout_; }
  /// "/proc/<this process>/fd/<descriptor>" after create(), for kRecordVariable; else empty.
  std::string path() const;

 private:
  explicit RecordMemory(int descriptor) : descriptor_(descriptor) {}
  bool map();
  void make_layout(std::int64_t guard);

  RecordLayout* layout_ = nullptr;
  int descriptor_ = -1;
};

struct FlightRecord;

/// One submission's place in the record.
using RecordTicket = std::uint64_t;
inline constexpr RecordTicket kNoTicket = ~RecordTicket{0};

/// Copied freely; default-constructed: off. The memory outlives it. Stores alone: no lock,
/// allocation or call of the system, so that signal handlers may call it. Thread rule: any thread,
/// but begin(), identify() and set_state(): one thread.
class RecordWriter {
 public:
  RecordWriter() noexcept = default;
  explicit RecordWriter(RecordLayout& memory) noexcept : memory_(&memory) {}
  bool on() const noexcept { return memory_ != nullptr; }

  /// hora::init begins, in this process; what an earlier one has left is forgotten.
  void begin() const noexcept;
  /// `rank`: what is known of this rank: hora's version, its host and place.
  void identify(const FlightRecord& rank) const noexcept;
  void set_state(RecordState state) const noexcept;
  /// The first cause is kept; the state is `failed` from then on. `code`: RecordedCause::code.
  void fail(std::string_view cause, std::uint32_t code) const noexcept;
  /// Notes what the program is doing. Concurrent calls leave a mixture.
  void note_phase(std::string_view phase) const noexcept;
  /// Notes the step from which the training can go on.
  void note_resumable(std::int64_t step) const noexcept {
    if (!memory_) return;
    std::int64_t none = 0;
    memory_->header.resumed.compare_exchange_strong(none, step + 1, kRelaxed);
    memory_->header.resumable.store(step + 1, kRelaxed);
  }

  /// Begins the entry of a collective; `peers`: ranks of its set.
  RecordTicket submitted(std::string_view name, ProcessSet set, const Signature& signature,
                         std::uint64_t bytes, std::size_t peers, RecordTime time) const noexcept;
  /// `number`: its place among the set's decisions, from 1.
  void decided(RecordTicket ticket, std::uint64_t number, RecordTime time) const noexcept;
  void started(RecordTicket ticket, RecordTime time) const noexcept;
  void finished(RecordTicket ticket, RecordOutcome outcome, RecordTime time) const noexcept;

  /// The destination of write_arrivals() while somebody watches; else null.
  RecordArrivals* watched_arrivals() const noexcept {
    const bool wanted = memory_ && memory_->arrivals.wanted.load(std::memory_order_relaxed) != 0;
    return wanted ? &memory_->arrivals : nullptr;
  }

  /// A thread begins or ends to wait for a result.
  void blocked(bool begins) const noexcept {
    if (memory_) memory_->header.blocked.fetch_add(begins ? 1 : -1, std::memory_order_relaxed);
  }

 private:
  /// The entry of a collective that goes on; null where it belongs to another one by now.
  RecordEntry* progressed(RecordTicket ticket, RecordTime time) const noexcept {
    if (!memory_ || ticket == kNoTicket) return nullptr;
    RecordEntry& entry = memory_->entries[ticket % kRecordedCollectives];
    if (entry.begun.load(kRelaxed) != static_cast<std::uint32_t>(ticket + 1)) return nullptr;
    memory_->header.progressed_at.store(time.count(), kRelaxed);
    return &entry;
  }

  RecordLayout* memory_ = nullptr;
};

/// Writes the root's ledger, as far as there is place, by stores alone. Thread rule: one thread.
void write_arrivals(RecordArrivals& memory, RecordTime at, std::uint64_t decisions,
                    std::uint64_t steps, std::span<const RankArrivals> rows) noexcept;

/// Owns the record, and without a guard writes it to a file. Any thread: failed(), writer().
class FlightRecorder {
 public:
  /// hora::init begins. `variable`: the value of kRecordVariable, null where it is not set. Memory
  /// that cannot be used is logged as a warning, and replaced by the rank's own.
  explicit FlightRecorder(const char* variable);

  RecordWriter writer() const noexcept { return writer_; }
  /// The process of the guard; 0 where there is none.
  std::int64_t guard() const noexcept {
    return memory_ ? std::max<std::int64_t>(0, memory_->layout().header.guard.load()) : 0;
  }

  /// From here on a failure is written there; empty: nowhere. Throws Error(invalid_setting) where
  /// nothing can be written. Without effect where there is a guard.
  void write_failures_to(const std::string& folder);
  /// The first call writes the cause, and the file. `code`: RecordedCause::code.
  void failed(std::string_view cause, std::uint32_t code = 0) noexcept;
  /// `elsewhere`: the cause is of another rank.
  void failed(const Error& error, bool elsewhere = false) noexcept {
    const std::uint32_t code = static_cast<std::uint32_t>(error.code()) + 1;
    failed(error.what(), elsewhere ? code | kFailedElsewhere : code);
  }

 private:
  std::optional<RecordMemory> memory_;  ///< none: off
  RecordWriter writer_;
  std::string folder_;
  std::atomic<bool> written_{false};
};

/// While it lives, the program's handlers of these signals are preceded by one that sends the
/// signal to the guard (unless it came from there), which signals all other ranks. A signal without
/// a handler keeps its effect. One at a time. Thread rule: one thread; signals on any.
class SignalRelay {
 public:
  /// The program has installed its handlers before.
  explicit SignalRelay(pid_t guard) noexcept;
  /// Puts the program's handlers back, where no others have been installed meanwhile.
  ~SignalRelay();
  SignalRelay(const SignalRelay&) = delete;
  SignalRelay& operator=(const SignalRelay&) = delete;
};

/// "starting", "initialised", "in shutdown", "shut down", "failed".
std::string_view name_of(RecordState state);

struct RecordedArrivals {
  RecordTime at{};
  std::uint64_t decisions = 0;  ///< on ids (negotiation/arrivals.h)
  std::uint64_t steps = 0;
  std::vector<RankArrivals> rows = {};
};

/// None where nothing was written, or a writer has died at it. Whatever the memory holds, counts
/// and phases are within their bounds, and nothing is negative. Thread rule: any thread.
std::optional<RecordedArrivals> read_arrivals(const RecordArrivals& memory);

/// 36 years; later times are damage.
inline constexpr RecordTime kLatestRecordTime{std::int64_t{1} << 60};

struct RecordedCollective {
  std::string name = {};  ///< the middle of a long one is left out
  std::uint32_t set = 0;
  std::uint64_t number = 0;  ///< among the decided ones of its set, from 1; 0: not decided
  OperationKind kind = OperationKind::allreduce;
  ReduceOp op = ReduceOp::sum;
  DataType type = DataType::float32;
  DeviceKind device = DeviceKind::cpu;
  RecordOutcome outcome = RecordOutcome::open;
  std::uint32_t peers = 0;  ///< ranks of the set
  std::uint64_t bytes = 0;
  RecordTime submitted{};
  RecordTime ready{};
  RecordTime started{};
  RecordTime done{};
  bool operator==(const RecordedCollective&) const = default;
};

/// The first error of a rank.
struct RecordedCause {
  std::string text = {};
  /// ErrorCode + 1, with kFailedElsewhere where it is another rank's; 0: no hora::Error.
  std::uint32_t code = 0;
  bool is_told() const { return (code & kFailedElsewhere) != 0; }
  bool is(ErrorCode of) const { return code == static_cast<std::uint32_t>(of) + 1; }
  RecordTime time{};
  bool operator==(const RecordedCause&) const = default;
};

/// How a rank's process ended, as its parent has seen it.
struct RecordedEnd {
  int signal = 0;            ///< 0: it exited
  int status = 0;            ///< of exit()
  bool by_launcher = false;  ///< horarun sent the signal, because of something else
  RecordTime time{};
  bool operator==(const RecordedEnd&) const = default;
};

struct FlightRecord {
  std::string hora_version = {};
  std::string host = {};
  int rank = -1;  ///< -1: hora::init had not got that far
  int size = 0;
  int node = 0;
  int local_rank = 0;
  std::int64_t pid = 0;    ///< 0: hora::init was not called
  std::int64_t guard = 0;  ///< 0: none
  RecordState state = RecordState::starting;
  RecordTime begin{};                     ///< of hora::init
  std::chrono::nanoseconds begin_wall{};  ///< the same moment, since 1970
  RecordTime last_activity{};             ///< of hora on this rank
  RecordTime taken{};                     ///< when this was read
  int blocked = 0;                        ///< threads that wait for results
  std::optional<RecordedCause> cause = {};
  std::string phase = {};
  RecordTime phase_at{};
  std::int64_t resumed = -1;     ///< the first step from which the training could go on; -1: none
  std::int64_t resumable = -1;   ///< the last one
  std::uint64_t submitted = 0;   ///< collectives in all; those that follow are the last ones
  std::uint64_t unreadable = 0;  ///< of them, for their entries were half-written or damaged
  std::vector<RecordedCollective> collectives = {};  ///< in the order of submission

  // Known to the process that watches the rank, not from the memory.
  std::optional<RecordedEnd> ended = {};
  bool stopped = false;  ///< by a signal, when this was read
  bool operator==(const FlightRecord&) const = default;
};

/// Reads memory that another process may write to, or has damaged: texts are printable, enumerators
/// exist, numbers are within bounds, entries are whole. `most`: of the last collectives. The error
/// names what is no record. Thread rule: any thread.
tl::expected<FlightRecord, std::string> read_record(const RecordLayout& memory, RecordTime now,
                                                    std::size_t most = kRecordedCollectives);

/// No record is longer; longer files are refused unread.
inline constexpr std::size_t kLongestRecordFile = std::size_t{4} << 20;

/// One line of ASCII for the header's fields, one for each collective. Times are nanoseconds.
std::string to_json(const FlightRecord& record);

/// Reads the text of to_json(). The error names the first field that is missing, of a wrong type or
/// out of bounds, or the other version. Texts are made printable. Pure.
tl::expected<FlightRecord, std::string> record_from_json(std::string_view text);

/// "<folder>/hora-record.<rank>.json".
std::string record_file(const std::string& folder, int rank);

/// Makes the folder where it is missing (mode 0700). The error says what is in the way.
tl::expected<void, std::string> make_record_folder(const std::string& folder);

/// Writes record_file() anew (mode 0600) in make_record_folder(); returns its path.
tl::expected<std::string, std::string> write_record(const FlightRecord& record,
                                                    const std::string& folder);

}  // namespace hora::internal
