#include "core/launch/diagnose/diagnosis_text.h"

#include <hora/printable.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <vector>

#include "core/base/text.h"
#include "core/launch/diagnose/diagnosis.h"
#include "core/launch/watch/ending.h"

namespace hora::launch {

using internal::FlightRecord;
using internal::RecordState;
using internal::RecordTime;

std::string duration_text(RecordTime time) {
  const double seconds = std::chrono::duration<double>(time).count();
  std::array<char, 64> text{};
  if (seconds < 0.1) {
    std::snprintf(text.data(), text.size(), "%.1f ms", seconds * 1e3);
  } else {
    std::snprintf(text.data(), text.size(), "%.1f s", seconds);
  }
  return text.data();
}

std::string rank_text(const JobRecords& job, int rank) {
  const auto record = job.of_rank.find(rank);
  std::string text = "rank " + std::to_string(rank);
  if (record == job.of_rank.end() || record->second.pid == 0) return text;
  return text + " (host " + record->second.host + ", pid " + std::to_string(record->second.pid) +
         ")";
}

std::string ranks_text_of(const JobRecords& job, std::span<const int> ranks) {
  return ranks.size() == 1 ? rank_text(job, ranks.front()) : internal::named_ranks(ranks);
}

std::string collective_text(internal::OperationKind kind, const std::string& name,
                            std::uint32_t set) {
  std::string text = std::string(name_of(kind)) + " " + in_quotes(name);
  if (set != 0) text += " (set " + std::to_string(set) + ")";
  return text;
}

std::string phase_text(const FlightRecord& record) {
  return record.phase.empty() ? std::string() : ", in " + record.phase;
}

bool ended_well(const FlightRecord& record) {
  const bool used_hora = record.pid != 0;
  const bool left_hora = !used_hora || record.state == RecordState::shut_down;
  if (!record.ended) return record.state == RecordState::shut_down;
  return left_hora && record.ended->signal == 0 && record.ended->status == 0;
}

std::string end_text(const FlightRecord& record) {
  if (record.ended && record.ended->signal != 0) {
    const std::string how = signal_text(record.ended->signal);
    return record.ended->by_launcher ? "was ended by horarun (" + how + ")"
                                     : "was killed by " + how;
  }
  if (record.ended) {
    std::string text = "left with exit status " + std::to_string(record.ended->status);
    const bool in_hora = record.pid != 0 && record.state != RecordState::shut_down;
    return in_hora ? text + " without Context::shutdown()" : text;
  }
  if (record.stopped) return "was stopped";
  switch (record.state) {
    case RecordState::starting:
      return "was in hora::init";
    case RecordState::initialised:
      return "was running";
    case RecordState::in_shutdown:
      return "was in shutdown";
    case RecordState::shut_down:
      return "had shut hora down";
    case RecordState::failed:
      return "had failed";
  }
  return {};
}

std::string to_text(const Diagnosis& diagnosis) {
  const RankFinding titles{0, "host", "end", "collectives", "phase"};
  std::size_t host = titles.host.size();
  std::size_t end = titles.end.size();
  std::size_t collective = titles.collective.size();
  for (const RankFinding& one : diagnosis.ranks) {
    host = std::max(host, one.host.size());
    end = std::max(end, one.end.size());
    collective = std::max(collective, one.collective.size());
  }
  const auto padded = [](std::string text, std::size_t width) {
    text.resize(std::max(text.size(), width), ' ');
    return text + "  ";
  };
  const auto line = [&](std::string rank, const RankFinding& one) {
    rank.insert(0, rank.size() < 6 ? 6 - rank.size() : 0, ' ');
    std::string text = rank + "  " + padded(one.host, host) + padded(one.end, end) +
                       padded(one.collective, collective) + one.phase;
    text.resize(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  std::string text = printable(diagnosis.headline) + "\n\n" + line("rank", titles);
  for (const RankFinding& one : diagnosis.ranks) text += line(std::to_string(one.rank), one);
  if (!diagnosis.notes.empty()) text += "\n";
  for (const std::string& note : diagnosis.notes) text += printable(note) + "\n";
  return text;
}

}  // namespace hora::launch
