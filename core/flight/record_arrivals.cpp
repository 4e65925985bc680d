#include <algorithm>
#include <limits>

#include "core/flight/record_reader.h"

namespace hora::internal {
namespace {

constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;
/// A writer is at work at each of so many looks: it has died there.
constexpr int kLooks = 100;

std::chrono::nanoseconds length_of(const std::atomic<std::int64_t>& stored) {
  return std::chrono::nanoseconds(std::max<std::int64_t>(0, stored.load(kAcquire)));
}

RecordedArrivals look_at(const RecordArrivals& memory) {
  RecordedArrivals arrivals;
  arrivals.at = length_of(memory.at);
  arrivals.decisions = memory.decisions.load(kAcquire);
  arrivals.steps = memory.steps.load(kAcquire);
  for (const auto& phase : memory.phases) arrivals.phases.push_back(text_of(phase));
  const std::size_t count = std::min<std::size_t>(memory.count.load(kAcquire), kRecordedArrivals);
  for (std::size_t i = 0; i < count; ++i) {
    const RecordArrivalsRow& row = memory.rows[i];
    arrivals.rows.push_back(
        {.rank = std::max(0, row.rank.load(kAcquire)),
         .last = row.last.load(kAcquire),
         .median = length_of(row.median),
         .p99 = length_of(row.p99),
         .phase = std::min<std::uint32_t>(row.phase.load(kAcquire), kRecordedPhases - 1)});
  }
  return arrivals;
}

}  // namespace

void write_arrivals(RecordArrivals& memory, const ArrivalsToRecord& arrivals) noexcept {
  const std::uint32_t sequence = memory.sequence.load(kRelaxed);
  // Acquired, so that no store below comes before it; also over what a killed process has left.
  const std::uint32_t odd = sequence | 1U;
  memory.sequence.exchange(odd, std::memory_order_acq_rel);
  memory.at.store(arrivals.at.count(), kRelease);
  memory.decisions.store(arrivals.decisions, kRelease);
  memory.steps.store(arrivals.steps, kRelease);
  for (std::size_t i = 0; i < std::min(arrivals.phases.size(), memory.phases.size()); ++i) {
    store_text(memory.phases[i], arrivals.phases[i]);
  }
  const std::size_t count = std::min(arrivals.rows.size(), memory.rows.size());
  for (std::size_t i = 0; i < count; ++i) {
    RecordArrivalsRow& row = memory.rows[i];
    const RecordedArrivalsRow& from = arrivals.rows[i];
    row.rank.store(from.rank, kRelease);
    row.phase.store(from.phase, kRelease);
    row.last.store(from.last, kRelease);
    row.median.store(from.median.count(), kRelease);
    row.p99.store(from.p99.count(), kRelease);
  }
  memory.count.store(static_cast<std::uint32_t>(count), kRelease);
  memory.sequence.store(odd + 1, kRelease);
}

std::optional<RecordedArrivals> read_arrivals(const RecordArrivals& memory) {
  for (int look = 0; look < kLooks; ++look) {
    const std::uint32_t sequence = memory.sequence.load(kAcquire);
    if (sequence == 0) return std::nullopt;
    if (sequence % 2 == 1) continue;
    RecordedArrivals arrivals = look_at(memory);
    if (memory.sequence.load(kRelaxed) == sequence) return arrivals;
  }
  return std::nullopt;
}

}  // namespace hora::internal
