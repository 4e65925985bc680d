/// The writer of a rank's flight record, and the owner of the record's memory.
#pragma once

#include <hora/error.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "core/flight/record.h"
#include "core/negotiation/signature.h"

namespace hora::internal {

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

  RecordMemory(RecordMemory&& other) noexcept;
  RecordMemory& operator=(RecordMemory&& other) noexcept;
  ~RecordMemory();

  RecordLayout& layout() const noexcept { return *layout_; }
  /// "/proc/<this process>/fd/<descriptor>" after create(), for kRecordVariable; else empty.
  std::string path() const;

 private:
  RecordMemory(RecordLayout* layout, int descriptor) : layout_(layout), descriptor_(descriptor) {}

  RecordLayout* layout_ = nullptr;
  int descriptor_ = -1;
};

/// The rank, where it is known.
struct RecordIdentity {
  std::string hora_version = {};
  std::string host = {};
  int rank = -1;
  int size = 0;
  int node = 0;
  int local_rank = 0;
};

/// One submission's place in the record.
using RecordTicket = std::uint64_t;
inline constexpr RecordTicket kNoTicket = ~RecordTicket{0};

/// A place for hooks, copied freely; default-constructed: off, and each costs one comparison. The
/// memory outlives it. Stores alone: no lock, no allocation, no call of the system, so that signal
/// handlers may call it. Thread rule: any thread, but begin(), identify() and set_state(): one
/// thread.
class RecordWriter {
 public:
  using Time = std::chrono::nanoseconds;  ///< of std::chrono::steady_clock, as CLOCK_MONOTONIC

  RecordWriter() noexcept = default;
  explicit RecordWriter(RecordLayout& memory) noexcept : memory_(&memory) {}
  bool on() const noexcept { return memory_ != nullptr; }

  /// hora::init begins, in this process; what an earlier one has left is forgotten.
  void begin() const noexcept;
  void identify(const RecordIdentity& identity) const noexcept;
  void set_state(RecordState state) const noexcept;
  /// The first cause is kept; the state is `failed` from then on.
  ///@{
  void fail(std::string_view cause) const noexcept { fail(cause, 0); }
  void fail(std::string_view cause, ErrorCode code, bool failed_elsewhere = false) const noexcept {
    fail(cause, static_cast<std::uint32_t>(code) + 1 + (failed_elsewhere ? kFailedElsewhere : 0));
  }
  ///@}
  /// Notes what the program is doing. Concurrent calls: one wins.
  void note_phase(std::string_view phase) const noexcept;

  /// Begins the entry of a collective; `peers`: ranks of its set.
  RecordTicket submitted(std::string_view name, ProcessSet set, const Signature& signature,
                         std::uint64_t bytes, std::size_t peers, Time time) const noexcept;
  /// `number`: its place among the set's decisions, from 1.
  void decided(RecordTicket ticket, std::uint64_t number, Time time) const noexcept;
  void started(RecordTicket ticket, Time time) const noexcept;
  void finished(RecordTicket ticket, RecordOutcome outcome, Time time) const noexcept;

  /// Where write_arrivals() puts what the root knows, while somebody watches; else null.
  RecordArrivals* watched_arrivals() const noexcept {
    const bool wanted = memory_ && memory_->arrivals.wanted.load(std::memory_order_relaxed) != 0;
    return wanted ? &memory_->arrivals : nullptr;
  }

  /// A thread begins or ends to wait for a result.
  void blocked(bool begins) const noexcept {
    if (memory_) memory_->header.blocked.fetch_add(begins ? 1 : -1, std::memory_order_relaxed);
  }

 private:
  void fail(std::string_view cause, std::uint32_t code) const noexcept;
  /// Null where the ticket's entry belongs to another one by now.
  RecordEntry* entry_of(RecordTicket ticket) const noexcept {
    if (!memory_ || ticket == kNoTicket) return nullptr;
    RecordEntry& entry = memory_->entries[ticket % kRecordedCollectives];
    const auto mark = static_cast<std::uint32_t>(ticket + 1);
    return entry.begun.load(std::memory_order_relaxed) == mark ? &entry : nullptr;
  }

  RecordLayout* memory_ = nullptr;
};

}  // namespace hora::internal
