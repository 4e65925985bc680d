#include "core/flight/record_writer.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace hora::internal {
namespace {

constexpr auto kRelease = std::memory_order_release;

std::int64_t nanoseconds(clockid_t clock) noexcept {
  timespec time{};
  ::clock_gettime(clock, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// Of a long name the middle is left out: models number their layers anywhere.
void store_name(RecordText<kRecordNameBytes>& words, std::string_view name) noexcept {
  constexpr std::string_view kGap = "...";
  constexpr std::size_t kFront = 24;
  if (name.size() <= kRecordNameBytes) return store_text(words, name);
  const std::string_view front = fitting(name, kFront);
  std::string_view back = name.substr(name.size() - (kRecordNameBytes - kFront - kGap.size()));
  while (!back.empty() && (static_cast<unsigned char>(back.front()) & 0xC0U) == 0x80U) {
    back.remove_prefix(1);
  }
  std::array<char, kRecordNameBytes> bytes{};
  char* end = std::copy(front.begin(), front.end(), bytes.data());
  end = std::copy(kGap.begin(), kGap.end(), end);
  std::copy(back.begin(), back.end(), end);
  store_bytes(words, bytes);
}

std::uint32_t packed(const Signature& signature) noexcept {
  return static_cast<std::uint32_t>(signature.kind) |
         static_cast<std::uint32_t>(signature.op) << 8U |
         static_cast<std::uint32_t>(signature.type) << 16U |
         static_cast<std::uint32_t>(signature.device) << 24U;
}

}  // namespace

std::string_view name_of(RecordState state) noexcept {
  switch (state) {
    case RecordState::starting:
      return "starting";
    case RecordState::initialised:
      return "initialised";
    case RecordState::in_shutdown:
      return "in shutdown";
    case RecordState::shut_down:
      return "shut down";
    case RecordState::failed:
      return "failed";
  }
  return "unknown";
}

void RecordWriter::begin() const noexcept {
  if (!memory_) return;
  RecordHeader& header = memory_->header;
  header.state.store(static_cast<std::uint32_t>(RecordState::starting), kRelaxed);
  header.rank.store(-1, kRelaxed);
  header.begin.store(nanoseconds(CLOCK_MONOTONIC), kRelaxed);
  header.begin_wall.store(nanoseconds(CLOCK_REALTIME), kRelaxed);
  // Also what a process that was killed has left half-written.
  for (RecordEntry& entry : memory_->entries) {
    entry.begun.store(0, kRelaxed);
    entry.written.store(0, kRelaxed);
  }
  header.next.store(0, kRelaxed);
  header.submitted_at.store(0, kRelaxed);
  header.progressed_at.store(0, kRelaxed);
  header.blocked.store(0, kRelaxed);
  header.cause_state.store(0, kRelaxed);
  header.phase_sequence.store(0, kRelaxed);
  header.phase_at.store(0, kRelaxed);
  store_text(header.phase, {});
  memory_->arrivals.sequence.store(0, kRelaxed);
  header.pid.store(::getpid(), kRelease);
}

void RecordWriter::identify(const RecordIdentity& identity) const noexcept {
  if (!memory_) return;
  RecordHeader& header = memory_->header;
  store_text(header.hora_version, identity.hora_version);
  store_text(header.host, identity.host);
  header.size.store(identity.size, kRelaxed);
  header.node.store(identity.node, kRelaxed);
  header.local_rank.store(identity.local_rank, kRelaxed);
  header.rank.store(identity.rank, kRelease);
}

void RecordWriter::set_state(RecordState state) const noexcept {
  if (!memory_) return;
  std::atomic<std::uint32_t>& stored = memory_->header.state;
  // What has failed stays so.
  std::uint32_t before = stored.load(kRelaxed);
  while (before != static_cast<std::uint32_t>(RecordState::failed) &&
         !stored.compare_exchange_weak(before, static_cast<std::uint32_t>(state), kRelease)) {
  }
}

void RecordWriter::fail(std::string_view cause, std::uint32_t code) const noexcept {
  if (!memory_) return;
  RecordHeader& header = memory_->header;
  std::uint32_t none = 0;
  if (!header.cause_state.compare_exchange_strong(none, 1)) return;
  header.cause_code.store(code, kRelaxed);
  header.cause_at.store(nanoseconds(CLOCK_MONOTONIC), kRelaxed);
  store_text(header.cause, cause);
  header.cause_state.store(2, kRelease);
  header.state.store(static_cast<std::uint32_t>(RecordState::failed), kRelease);
}

void RecordWriter::note_phase(std::string_view phase) const noexcept {
  if (!memory_) return;
  RecordHeader& header = memory_->header;
  std::uint32_t sequence = header.phase_sequence.load(kRelaxed);
  if (sequence % 2 == 1 || !header.phase_sequence.compare_exchange_strong(
                               sequence, sequence + 1, std::memory_order_acquire, kRelaxed)) {
    return;
  }
  header.phase_at.store(nanoseconds(CLOCK_MONOTONIC), kRelease);
  store_text(header.phase, phase);
  header.phase_sequence.store(sequence + 2, kRelease);
}

RecordTicket RecordWriter::submitted(std::string_view name, ProcessSet set,
                                     const Signature& signature, std::uint64_t bytes,
                                     std::size_t peers, Time time) const noexcept {
  if (!memory_) return kNoTicket;
  RecordHeader& header = memory_->header;
  const RecordTicket ticket = header.next.fetch_add(1, kRelaxed);
  header.submitted_at.store(time.count(), kRelaxed);
  RecordEntry& entry = memory_->entries[ticket % kRecordedCollectives];
  // A thread that was held up here for as long as all other entries took still writes: this one
  // goes unrecorded.
  std::uint32_t before = entry.begun.load(kRelaxed);
  if (entry.written.load(std::memory_order_acquire) != before ||
      !entry.begun.compare_exchange_strong(before, static_cast<std::uint32_t>(ticket + 1),
                                           std::memory_order_acquire, kRelaxed)) {
    return kNoTicket;
  }
  entry.number.store(0, kRelease);
  entry.set.store(set.number(), kRelease);
  entry.peers.store(static_cast<std::uint32_t>(peers), kRelease);
  entry.what.store(packed(signature), kRelease);
  entry.outcome.store(static_cast<std::uint32_t>(RecordOutcome::open), kRelease);
  entry.bytes.store(bytes, kRelease);
  entry.submitted.store(time.count(), kRelease);
  entry.ready.store(0, kRelease);
  entry.started.store(0, kRelease);
  entry.done.store(0, kRelease);
  store_name(entry.name, name);
  entry.written.store(static_cast<std::uint32_t>(ticket + 1), kRelease);
  return ticket;
}

void RecordWriter::decided(RecordTicket ticket, std::uint64_t number, Time time) const noexcept {
  RecordEntry* const entry = entry_of(ticket);
  if (!entry) return;
  entry->number.store(number, kRelease);
  entry->ready.store(time.count(), kRelease);
  memory_->header.progressed_at.store(time.count(), kRelaxed);
}

void RecordWriter::started(RecordTicket ticket, Time time) const noexcept {
  RecordEntry* const entry = entry_of(ticket);
  if (!entry) return;
  entry->started.store(time.count(), kRelease);
  memory_->header.progressed_at.store(time.count(), kRelaxed);
}

void RecordWriter::finished(RecordTicket ticket, RecordOutcome outcome, Time time) const noexcept {
  RecordEntry* const entry = entry_of(ticket);
  if (!entry) return;
  entry->done.store(time.count(), kRelease);
  entry->outcome.store(static_cast<std::uint32_t>(outcome), kRelease);
  memory_->header.progressed_at.store(time.count(), kRelaxed);
}

}  // namespace hora::internal
