#include "core/negotiation/overdue_names.h"

#include <fmt/format.h>
#include <hora/printable.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/base/text.h"
namespace hora::internal {
namespace {

constexpr std::size_t kValuesShown = 8;

std::string differences(const Report& report) {
  std::vector<std::string_view> words;
  const auto add = [&](auto field, const char* word) {
    const auto of = [&](const ReportedSignature& v) { return std::invoke(field, v.signature); };
    const bool same = std::ranges::all_of(
        report.values, [&](const auto& v) { return of(v) == of(report.values.front()); });
    if (!same) words.push_back(word);
  };
  add(&Signature::kind, "operation");
  add(&Signature::type, "type");
  add([](const Signature& s) { return s.shape.size(); }, "number of dimensions");
  add(&Signature::shape, "shape");
  add(&Signature::op, "reduction");
  add(&Signature::prescale, "prescale");
  add(&Signature::postscale, "postscale");
  add(&Signature::root, "root");
  add(&Signature::device, "device");
  return fmt::format("{}", fmt::join(words, ", "));
}

constexpr std::size_t kNamesShown = 3;
constexpr std::size_t kGroupsShown = 4;
constexpr std::size_t kRemarksShown = 4;

/// Tensors that the same ranks wait for.
using OverdueGroup = std::vector<const OverdueTensor*>;

bool alike(const OverdueTensor& a, const OverdueTensor& b) {
  return std::tie(a.ready, a.missing, a.silent, a.elsewhere) ==
         std::tie(b.ready, b.missing, b.silent, b.elsewhere);
}

std::vector<OverdueGroup> grouped(std::span<const OverdueTensor> tensors) {
  std::vector<OverdueGroup> groups;
  for (const OverdueTensor& tensor : tensors) {
    const auto same = std::ranges::find_if(
        groups, [&](const OverdueGroup& group) { return alike(*group.front(), tensor); });
    (same == groups.end() ? groups.emplace_back() : *same).push_back(&tensor);
  }
  return groups;
}

std::string names_text(const OverdueGroup& group) {
  if (group.size() == 1) return tensor_text(group.front()->name);
  std::string text = "tensors ";
  const std::size_t shown = std::min(group.size(), kNamesShown);
  for (std::size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : ", ") + in_quotes(group[i]->name);
  if (shown < group.size()) text += " and " + std::to_string(group.size() - shown) + " more";
  return text;
}

std::string group_text(ProcessSet set, const OverdueGroup& group) {
  const OverdueTensor& tensor = *group.front();
  const bool one = group.size() == 1;
  std::string text = names_text(group);
  if (set != kWorld) text += " of process set " + to_string(set);
  text += fmt::format(" {} waited for by ranks {} and {} not been submitted", one ? "is" : "are",
                      ranks_text(tensor.ready), one ? "has" : "have");
  if (!tensor.missing.empty()) text += " by ranks " + ranks_text(tensor.missing);
  if (!tensor.silent.empty()) {
    text += fmt::format("{} by ranks {} (nothing heard from their nodes about it)",
                        tensor.missing.empty() ? "" : ",", ranks_text(tensor.silent));
  }
  for (const auto& [other, ranks] : tensor.elsewhere) {
    text += fmt::format(
        "; ranks {} wait under {} on process set {}: is it meant to be one tensor, on one set?",
        ranks_text(ranks), one ? "this name" : "these names", to_string(other));
  }
  return text;
}

/// Ranks report overdue names within a tick of one another; the rest is for the reports, and the
/// answers to the root's question, to arrive before it prints.
constexpr Duration kGatherTime = kOverdueTick + std::chrono::milliseconds(250);

OverdueTensor overdue_tensor(Presence presence, std::span<const int> ranks,
                             const std::map<ProcessSet, std::set<int>>& elsewhere) {
  OverdueTensor tensor{.name = std::move(presence.name),
                       .ready = std::move(presence.ready),
                       .missing = std::move(presence.missing),
                       .silent = {}};
  for (const int rank : ranks) {
    const bool is_known = std::ranges::binary_search(tensor.ready, rank) ||
                          std::ranges::binary_search(tensor.missing, rank);
    if (!is_known) tensor.silent.push_back(rank);
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

std::string mismatch_text(const Report& report) {
  const auto& values = report.values;
  const auto joined = std::ranges::find_if(
      values, [](const auto& v) { return v.signature.kind == OperationKind::join; });
  if (joined != values.end()) {
    const auto other = joined == values.begin() ? joined + 1 : values.begin();
    return fmt::format(
        "{}: {} called join() and nothing more to bring: only an allreduce goes on then, and {} "
        "submitted {}",
        tensor_text(report.name), ranks_have(joined->ranks), named_ranks(other->ranks),
        to_string(other->signature));
  }
  std::vector<std::string> shown;
  for (const ReportedSignature& value : values) {
    if (shown.size() == kValuesShown) {
      shown.push_back(fmt::format("and {} other values", values.size() - kValuesShown));
      break;
    }
    shown.push_back(named_ranks(value.ranks) + ": " + to_string(value.signature));
  }
  return fmt::format(
      "{}: ranks disagree about its {}: {}. Submit the same operation, type, shape, reduction and "
      "root under one name.",
      tensor_text(report.name), differences(report), fmt::join(shown, "; "));
}

std::string overdue_text(ProcessSet set, std::span<const OverdueTensor> tensors,
                         const std::map<int, std::string>& remarks) {
  std::string text;
  std::size_t left = tensors.size();
  std::size_t shown = 0;
  for (const OverdueGroup& group : grouped(tensors)) {
    if (shown++ == kGroupsShown) break;
    text += (text.empty() ? "" : "; ") + group_text(set, group);
    left -= group.size();
  }
  if (left > 0) text += "; and " + std::to_string(left) + " more tensors wait for other ranks";
  text += ". Do all ranks call the same collectives? Is one of them slow, stopped or gone?";
  std::size_t said = 0;
  for (const auto& [rank, remark] : remarks) {
    if (said == kRemarksShown) {
      return text + "; and " + std::to_string(remarks.size() - said) + " more ranks";
    }
    text += (said++ == 0 ? " " : "; ") + remark;
  }
  return text;
}

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

/// Gives what is seen and heard of each name, and forgets it. Both lists ascending; a rank that is
/// ready by either is not missing.
template <class Take>
void OverdueNames::take_each(const Seen& seen, const Take& take) {
  for (const auto& [name, heard] : names_) {
    const Presence own = seen(name);
    note_remarks(own);
    std::set<int> ready = heard.ready;
    std::set<int> missing = heard.missing;
    ready.insert(own.ready.begin(), own.ready.end());
    missing.insert(own.missing.begin(), own.missing.end());
    for (const int rank : ready) missing.erase(rank);
    if (ready.empty()) continue;  // decided meanwhile
    take(Presence{name, {ready.begin(), ready.end()}, {missing.begin(), missing.end()}}, heard);
  }
  names_.clear();
  remarks_.clear();
}

std::vector<Presence> OverdueNames::take_presence(const Seen& seen) {
  std::vector<Presence> reports;
  take_each(seen, [&](Presence presence, const Heard&) {
    if (!remarks_.empty()) {
      for (const int rank : presence.missing) presence.remarks.push_back(remarks_[rank]);
    }
    reports.push_back(std::move(presence));
  });
  return reports;
}

std::optional<std::string> OverdueNames::take_warning(Duration now, std::span<const int> ranks,
                                                      const Seen& seen) {
  std::vector<OverdueTensor> tensors;
  std::map<int, std::string> remarks;
  take_each(seen, [&](Presence presence, const Heard& heard) {
    for (const int rank : presence.missing) {
      if (const std::string& remark = remarks_[rank]; !remark.empty()) remarks[rank] = remark;
    }
    tensors.push_back(overdue_tensor(std::move(presence), ranks, heard.elsewhere));
  });
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

bool ExpiringNames::note(const Expiring& expiring, Duration now) {
  const Duration at = now + expiring.expiry.left;
  const auto [entry, is_new] = names_.try_emplace(expiring.name, Heard{expiring, at});
  Heard& heard = entry->second;
  if (at < heard.at) {
    heard.expiring = expiring;
    heard.at = at;
  }
  heard.ready[expiring.rank] = true;
  return is_new;
}

void ExpiringNames::note_presence(const Presence& presence) {
  const auto entry = names_.find(presence.name);
  if (entry == names_.end()) return;
  Heard& heard = entry->second;
  for (const int rank : presence.ready) heard.ready[rank] = true;
  for (std::size_t i = 0; i < presence.missing.size(); ++i) {
    const int rank = presence.missing[i];
    heard.ready[rank] = false;
    if (i < presence.remarks.size() && !presence.remarks[i].empty()) {
      heard.remarks[rank] = presence.remarks[i];
    }
  }
}

std::optional<Duration> ExpiringNames::deadline() const {
  if (names_.empty()) return std::nullopt;
  return std::ranges::min_element(names_, {}, [](const auto& entry) { return entry.second.at; })
      ->second.at;
}

std::vector<Expired> ExpiringNames::take(Duration now, const OverdueNames::Seen& own) {
  std::vector<Expired> expired;
  for (auto entry = names_.begin(); entry != names_.end();) {
    const Heard& heard = entry->second;
    if (heard.at > now) {
      ++entry;
      continue;
    }
    Presence presence = completed(own(entry->first), heard);
    // Where the rank does not wait for others any more, it has been decided meanwhile.
    if (std::ranges::find(presence.ready, heard.expiring.rank) != presence.ready.end()) {
      expired.push_back({heard.expiring, std::move(presence)});
    }
    entry = names_.erase(entry);
  }
  return expired;
}

Presence ExpiringNames::completed(Presence own) const {
  const auto entry = names_.find(own.name);
  return entry == names_.end() ? std::move(own) : completed(std::move(own), entry->second);
}

Presence ExpiringNames::completed(Presence own, const Heard& heard) {
  std::map<int, bool> ready = heard.ready;
  std::map<int, std::string> remarks = heard.remarks;
  for (const int rank : own.ready) ready[rank] = true;
  for (std::size_t i = 0; i < own.missing.size(); ++i) {
    ready[own.missing[i]] = false;
    if (i < own.remarks.size()) remarks[own.missing[i]] = own.remarks[i];
  }
  Presence all{std::move(own.name), {}, {}};
  for (const auto& [rank, is_ready] : ready) {
    (is_ready ? all.ready : all.missing).push_back(rank);
    if (!is_ready) all.remarks.push_back(remarks[rank]);
  }
  return all;
}

}  // namespace hora::internal
