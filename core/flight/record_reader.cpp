#include "core/flight/record_reader.h"

#include <algorithm>
#include <limits>

namespace hora::internal {
namespace {

constexpr auto kAcquire = std::memory_order_acquire;
/// A writer is at work at each of so many looks: it has died there.
constexpr int kLooks = 100;

RecordTime time_of(const std::atomic<std::int64_t>& stored) {
  return std::clamp(RecordTime(stored.load(kAcquire)), RecordTime(0), kLatestRecordTime);
}

/// False where the number is no enumerator.
template <class E>
bool take(E& value, std::uint32_t number) {
  using Number = std::underlying_type_t<E>;
  if (number > static_cast<std::uint32_t>(last_of<E>)) return false;
  value = static_cast<E>(static_cast<Number>(number));
  return true;
}

bool take_what(RecordedCollective& collective, std::uint32_t what) {
  return take(collective.kind, what & 0xFFU) && take(collective.op, what >> 8U & 0xFFU) &&
         take(collective.type, what >> 16U & 0xFFU) && take(collective.device, what >> 24U);
}

/// None: another ticket's, half-written, or damaged.
std::optional<RecordedCollective> read_entry(const RecordEntry& entry, std::uint64_t ticket) {
  const auto mark = static_cast<std::uint32_t>(ticket + 1);
  if (entry.written.load(kAcquire) != mark) return std::nullopt;
  RecordedCollective read;
  // First what is stored last: where that is there, the rest is.
  const bool has_outcome = take(read.outcome, entry.outcome.load(kAcquire));
  read.done = time_of(entry.done);
  read.started = time_of(entry.started);
  read.ready = time_of(entry.ready);
  read.number = entry.number.load(kAcquire);
  read.submitted = time_of(entry.submitted);
  read.name = text_of(entry.name);
  read.set = entry.set.load(kAcquire);
  read.peers = entry.peers.load(kAcquire);
  read.bytes = std::min(entry.bytes.load(kAcquire), kMaxBytes);
  const bool has_kind = take_what(read, entry.what.load(kAcquire));
  if (entry.begun.load(kRelaxed) != mark || !has_outcome || !has_kind) return std::nullopt;
  return read;
}

void read_collectives(const RecordLayout& memory, FlightRecord& record) {
  record.submitted = memory.header.next.load(kAcquire);
  const std::uint64_t count = std::min<std::uint64_t>(record.submitted, kRecordedCollectives);
  for (std::uint64_t ticket = record.submitted - count; ticket < record.submitted; ++ticket) {
    auto read = read_entry(memory.entries[ticket % kRecordedCollectives], ticket);
    if (read) {
      record.collectives.push_back(std::move(*read));
    } else {
      ++record.unreadable;
    }
  }
}

void read_phase(const RecordHeader& header, FlightRecord& record) {
  for (int look = 0; look < kLooks; ++look) {
    const std::uint32_t sequence = header.phase_sequence.load(kAcquire);
    std::string text = text_of(header.phase);
    const RecordTime time = time_of(header.phase_at);
    if (sequence % 2 == 1 || header.phase_sequence.load(kRelaxed) != sequence) continue;
    record.phase = std::move(text);
    record.phase_at = time;
    return;
  }
}

void read_cause(const RecordHeader& header, FlightRecord& record) {
  if (header.cause_state.load(kAcquire) != 2) return;
  record.cause = RecordedCause{.text = text_of(header.cause),
                               .code = header.cause_code.load(kRelaxed),
                               .time = time_of(header.cause_at)};
}

int within(std::int64_t number, int least, int most) {
  return static_cast<int>(std::clamp<std::int64_t>(number, least, most));
}

}  // namespace

RecordTime record_now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

RecordState state_of(const RecordLayout& memory) noexcept {
  RecordState state = RecordState::starting;
  take(state, memory.header.state.load(kAcquire));
  return state;
}

RecordTime last_activity_of(const RecordLayout& memory) noexcept {
  const RecordHeader& header = memory.header;
  return std::max({time_of(header.begin), time_of(header.submitted_at),
                   time_of(header.progressed_at), time_of(header.phase_at)});
}

RecordGlance glance_at(const RecordLayout& memory) {
  const RecordHeader& header = memory.header;
  RecordGlance glance;
  glance.has_begun = header.pid.load(kAcquire) > 0;
  glance.state = state_of(memory);
  glance.submitted = header.next.load(kAcquire);
  if (glance.submitted > 0) {
    const std::uint64_t ticket = glance.submitted - 1;
    auto last = read_entry(memory.entries[ticket % kRecordedCollectives], ticket);
    if (last) glance.last_collective = std::move(last->name);
  }
  glance.waits = header.blocked.load(kRelaxed) > 0;
  glance.last_activity = last_activity_of(memory);
  FlightRecord phase;
  read_phase(header, phase);
  glance.phase = std::move(phase.phase);
  return glance;
}

tl::expected<FlightRecord, std::string> read_record(const RecordLayout& memory, RecordTime now) {
  constexpr int kMost = std::numeric_limits<int>::max();
  const RecordHeader& header = memory.header;
  if (header.magic.load(kAcquire) != kRecordMagic) {
    return tl::unexpected(std::string("this memory holds no flight record"));
  }
  if (const std::uint32_t version = header.version.load(); version != kRecordVersion) {
    return tl::unexpected("this flight record has layout " + std::to_string(version) + ", not " +
                          std::to_string(kRecordVersion));
  }
  FlightRecord record;
  record.state = state_of(memory);
  record.rank = within(header.rank.load(kAcquire), -1, kMost);
  record.size = within(header.size.load(kRelaxed), 0, kMost);
  record.node = within(header.node.load(kRelaxed), 0, kMost);
  record.local_rank = within(header.local_rank.load(kRelaxed), 0, kMost);
  record.hora_version = text_of(header.hora_version);
  record.host = text_of(header.host);
  record.pid = std::max<std::int64_t>(0, header.pid.load(kRelaxed));
  record.guard = std::max<std::int64_t>(0, header.guard.load(kRelaxed));
  record.begin = time_of(header.begin);
  record.begin_wall = RecordTime(std::max<std::int64_t>(0, header.begin_wall.load(kRelaxed)));
  record.last_activity = last_activity_of(memory);
  record.taken = now;
  record.blocked = within(header.blocked.load(kRelaxed), 0, kMost);
  read_cause(header, record);
  read_phase(header, record);
  read_collectives(memory, record);
  return record;
}

}  // namespace hora::internal
