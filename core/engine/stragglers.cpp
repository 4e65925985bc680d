#include "core/engine/stragglers.h"

#include <algorithm>
#include <string_view>

#include "core/base/log.h"
#include "core/flight/flight_recorder.h"

namespace hora::internal {
namespace {

/// Between two looks of those who watch.
constexpr std::chrono::nanoseconds kRecordInterval = std::chrono::milliseconds(500);

std::vector<int> ranks_of(const Topology& topology) {
  std::vector<int> all;
  for (const auto& ranks : topology.ranks_of_node)
    all.insert(all.end(), ranks.begin(), ranks.end());
  std::ranges::sort(all);
  return all;
}

}  // namespace

Stragglers::Stragglers(const SetParts& set, const EngineParts& engine, const NotedPhases& noted,
                       ProcessSet id)
    : engine_(engine),
      noted_(noted),
      ledger_(ranks_of(set.topology), set.control_block->id_capacity()),
      last_of_(static_cast<std::size_t>(set.control_block->id_capacity())),
      record_(engine.flight && id == kWorld ? engine.flight->writer() : RecordWriter()),
      rows_(std::min(ledger_.ranks().size(), kRecordedArrivals)) {}

void Stragglers::note_names(const Decision& decision) {
  for (const Assigned& assigned : decision.assigned) {
    ledger_.assign(static_cast<std::size_t>(slot_of(assigned.id)), assigned.name);
  }
}

void Stragglers::count(Id id, const LastArrival& last) {
  const auto slot = static_cast<std::size_t>(slot_of(id));
  if (slot < last_of_.size()) last_of_[slot] = last;
  const auto slow = ledger_.add(slot, last, noted_.current());
  RecordArrivals* const watched = record_.watched_arrivals();
  if (watched && last.at - recorded_at_ >= kRecordInterval) record(*watched, last.at);
  if (slow) log().warn("{}", slow_rank_text(*slow, engine_.processes, noted_));
}

void Stragglers::record(RecordArrivals& memory, LastArrival::Time time) {
  recorded_at_ = time;
  const std::size_t count = ledger_.most_often_last(rows_);
  std::array<PhaseName, kStepPhases> names;
  std::array<std::string_view, kStepPhases> phases;
  for (PhaseIndex phase = 0; phase < kStepPhases; ++phase) {
    names[phase] = noted_.name(phase);
    phases[phase] = names[phase].text();
  }
  write_arrivals(memory, {.at = time,
                          .decisions = ledger_.decisions(),
                          .steps = ledger_.steps(),
                          .phases = phases,
                          .rows = std::span(rows_).first(count)});
}

std::string Stragglers::text() const {
  return arrivals_text(ledger_, engine_.processes, noted_);
}

}  // namespace hora::internal
