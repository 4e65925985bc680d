#include "core/negotiation/overdue_names.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace hora::internal {
namespace {

/// Ranks report overdue names within a tick of one another; the rest is for the reports, and the
/// answers to the root's question, to arrive before it prints.
constexpr Duration kGatherTime = kOverdueTick + std::chrono::milliseconds(250);

bool contains(const std::vector<int>& ascending, int rank) {
  return std::binary_search(ascending.begin(), ascending.end(), rank);
}

OverdueTensor overdue_tensor(Presence presence, std::span<const int> ranks,
                             const std::map<ProcessSet, std::set<int>>& elsewhere) {
  OverdueTensor tensor{.name = std::move(presence.name),
                       .ready = std::move(presence.ready),
                       .missing = std::move(presence.missing),
                       .silent = {}};
  for (const int rank : ranks) {
    if (!contains(tensor.ready, rank) && !contains(tensor.missing, rank)) {
      tensor.silent.push_back(rank);
    }
  }
  for (const auto& [set, there] : elsewhere) {
    std::vector<int> waiting;
    std::set_difference(there.begin(), there.end(), tensor.ready.begin(), tensor.ready.end(),
                        std::back_inserter(waiting));
    if (!waiting.empty()) tensor.elsewhere.emplace(set, std::move(waiting));
  }
  return tensor;
}

}  // namespace

void OverdueNames::note(const std::string& name, Duration now) {
  const bool first = names_.empty();
  if (!names_.try_emplace(name).second) return;
  if (at_root_) to_ask_.push_back(name);
  if (first) report_at_ = at_root_ ? std::max(now + kGatherTime, quiet_until_) : now;
}

void OverdueNames::note_presence(const Presence& presence, Duration now) {
  if (!presence.is_answer) note(presence.name, now);
  const auto overdue = names_.find(presence.name);
  if (overdue == names_.end()) return;
  Heard& heard = overdue->second;
  heard.ready.insert(presence.ready.begin(), presence.ready.end());
  heard.missing.insert(presence.missing.begin(), presence.missing.end());
  note_remarks(presence);
}

void OverdueNames::note_remarks(const Presence& presence) {
  const std::size_t count = std::min(presence.remarks.size(), presence.missing.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (presence.remarks[i].empty()) continue;
    remarks_.insert_or_assign(presence.missing[i], presence.remarks[i]);
  }
}

void OverdueNames::note_elsewhere(const Elsewhere& elsewhere) {
  if (const auto overdue = names_.find(elsewhere.name); overdue != names_.end()) {
    overdue->second.elsewhere[elsewhere.process_set].insert(elsewhere.rank);
  }
}

std::optional<Duration> OverdueNames::deadline() const {
  return names_.empty() ? std::nullopt : std::optional(report_at_);
}

/// Both lists ascending; a rank that is ready by either is not missing.
Presence OverdueNames::merged(Presence seen, const Heard& heard) {
  std::set<int> ready = heard.ready;
  std::set<int> missing = heard.missing;
  ready.insert(seen.ready.begin(), seen.ready.end());
  missing.insert(seen.missing.begin(), seen.missing.end());
  for (const int rank : ready) missing.erase(rank);
  return {std::move(seen.name), {ready.begin(), ready.end()}, {missing.begin(), missing.end()}};
}

std::vector<Presence> OverdueNames::take_presence(const Seen& seen) {
  std::vector<Presence> reports;
  for (const auto& [name, heard] : names_) {
    Presence own = seen(name);
    note_remarks(own);
    Presence presence = merged(std::move(own), heard);
    if (presence.ready.empty()) continue;  // decided meanwhile
    if (!remarks_.empty()) {
      for (const int rank : presence.missing) presence.remarks.push_back(remarks_[rank]);
    }
    reports.push_back(std::move(presence));
  }
  names_.clear();
  remarks_.clear();
  return reports;
}

std::optional<std::string> OverdueNames::take_warning(Duration now, std::span<const int> ranks,
                                                      const Seen& seen) {
  std::vector<OverdueTensor> tensors;
  std::map<int, std::string> remarks;
  for (const auto& [name, heard] : names_) {
    Presence own = seen(name);
    note_remarks(own);
    Presence presence = merged(std::move(own), heard);
    if (presence.ready.empty()) continue;  // decided meanwhile
    for (const int rank : presence.missing) {
      if (const std::string& remark = remarks_[rank]; !remark.empty()) remarks[rank] = remark;
    }
    tensors.push_back(overdue_tensor(std::move(presence), ranks, heard.elsewhere));
  }
  names_.clear();
  remarks_.clear();
  if (tensors.empty()) return std::nullopt;
  quiet_until_ = now + warning_interval_;
  return overdue_text(set_, tensors, remarks);
}

std::vector<std::string> OverdueNames::take_questions(std::size_t bytes) {
  std::vector<std::string> names;
  for (std::size_t taken = 0; !to_ask_.empty() && taken < bytes; to_ask_.pop_front()) {
    taken += to_ask_.front().size();
    names.push_back(std::move(to_ask_.front()));
  }
  return names;
}

}  // namespace hora::internal
