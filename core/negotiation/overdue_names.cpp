#include "core/negotiation/overdue_names.h"

#include <fmt/format.h>
#include <hora/printable.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <string_view>
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
constexpr std::size_t kRemarksShown = 8;

/// Tensors that the same ranks wait for.
using OverdueGroup = std::vector<const Presence*>;

std::vector<OverdueGroup> grouped(std::span<const Presence> tensors) {
  std::vector<OverdueGroup> groups;
  for (const Presence& tensor : tensors) {
    const auto same = std::ranges::find_if(groups, [&](const OverdueGroup& group) {
      return group.front()->ready == tensor.ready && group.front()->missing == tensor.missing;
    });
    (same == groups.end() ? groups.emplace_back() : *same).push_back(&tensor);
  }
  return groups;
}

std::string names_text(const OverdueGroup& group) {
  if (group.size() == 1) return tensor_text(group.front()->name);
  std::string text = "tensors ";
  const std::size_t shown = std::min(group.size(), kNamesShown);
  for (std::size_t i = 0; i < shown; ++i) text += (i == 0 ? "" : ", ") + in_quotes(group[i]->name);
  if (shown < group.size()) text += fmt::format(" and {} more", group.size() - shown);
  return text;
}

std::string group_text(ProcessSet set, const OverdueGroup& group, std::span<const int> ranks) {
  const Presence& tensor = *group.front();
  std::vector<int> silent;  // of nodes that have said nothing about it
  std::ranges::copy_if(ranks, std::back_inserter(silent), [&](int rank) {
    return !std::ranges::binary_search(tensor.ready, rank) &&
           !std::ranges::binary_search(tensor.missing, rank);
  });
  const bool one = group.size() == 1;
  std::string text = names_text(group);
  if (set != kWorld) text += " of process set " + to_string(set);
  text += fmt::format(" {} waited for by ranks {} and {} not been submitted", one ? "is" : "are",
                      ranks_text(tensor.ready), one ? "has" : "have");
  if (!tensor.missing.empty()) text += " by ranks " + ranks_text(tensor.missing);
  if (!silent.empty()) {
    text += fmt::format("{} by ranks {} (nothing heard from their nodes about it)",
                        tensor.missing.empty() ? "" : ",", ranks_text(silent));
  }
  return text;
}

/// Ranks report overdue names within a tick of one another; the rest is for the reports, and the
/// answers to the root's question, to arrive before it prints.
constexpr Duration kGatherTime = kOverdueTick + std::chrono::milliseconds(250);

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

std::string remarks_text(std::span<const std::string> remarks) {
  const std::size_t shown = std::min(remarks.size(), kRemarksShown);
  const std::string text = fmt::format("{}", fmt::join(remarks.first(shown), "; "));
  if (remarks.size() == shown) return text;
  return fmt::format("{}; and {} more ranks", text, remarks.size() - shown);
}

std::string overdue_text(ProcessSet set, std::span<const Presence> tensors,
                         std::span<const int> ranks) {
  std::string text;
  std::size_t left = tensors.size();
  std::size_t shown = 0;
  for (const OverdueGroup& group : grouped(tensors)) {
    if (shown++ == kGroupsShown) break;
    text += (text.empty() ? "" : "; ") + group_text(set, group, ranks);
    left -= group.size();
  }
  if (left > 0) text += fmt::format("; and {} more tensors wait for other ranks", left);
  text += ". Do all ranks call the same collectives? Is one of them slow, stopped or gone?";
  std::map<int, std::string> of_rank;
  for (const Presence& tensor : tensors) {
    for (std::size_t i = 0; i < tensor.remarks.size(); ++i) {
      if (!tensor.remarks[i].empty()) of_rank[tensor.missing[i]] = tensor.remarks[i];
    }
  }
  std::vector<std::string> remarks;
  for (const auto& [rank, remark] : of_rank) remarks.push_back(remark);
  return text + (remarks.empty() ? "" : " ") + remarks_text(remarks);
}

void OverdueNames::Heard::add(const Presence& presence) {
  for (const int rank : presence.ready) ready[rank] = true;
  for (std::size_t i = 0; i < presence.missing.size(); ++i) {
    const int rank = presence.missing[i];
    ready[rank] = false;
    if (i < presence.remarks.size() && !presence.remarks[i].empty()) {
      remarks[rank] = presence.remarks[i];
    }
  }
}

Presence OverdueNames::Heard::with(const Presence& seen) const {
  Heard all = *this;
  all.add(seen);
  Presence presence{seen.name, {}, {}};
  for (const auto& [rank, is_ready] : all.ready) {
    (is_ready ? presence.ready : presence.missing).push_back(rank);
    if (!is_ready && !all.remarks.empty()) presence.remarks.push_back(all.remarks[rank]);
  }
  return presence;
}

void OverdueNames::note(const std::string& name, Duration now) {
  const bool is_first =
      std::ranges::none_of(names_, [](const auto& entry) { return entry.second.is_overdue; });
  if (std::exchange(names_[name].is_overdue, true)) return;
  if (at_root_) to_ask_.push_back(name);
  if (is_first) report_at_ = at_root_ ? std::max(now + kGatherTime, quiet_until_) : now;
}

void OverdueNames::note_expiring(const Expiring& expiring, Duration now) {
  const Duration at = now + expiring.expiry.left;
  Heard& heard = names_[expiring.name];
  // All leaders are asked about it.
  if (!heard.expiring) to_ask_.push_back(expiring.name);
  if (!heard.expiring || at < heard.expires_at) {
    heard.expiring = expiring;
    heard.expires_at = at;
  }
  heard.ready[expiring.rank] = true;
}

void OverdueNames::note_presence(const Presence& presence, Duration now) {
  if (!presence.is_answer) note(presence.name, now);
  const auto entry = names_.find(presence.name);
  if (entry != names_.end()) entry->second.add(presence);
}

std::optional<Duration> OverdueNames::deadline() const {
  std::optional<Duration> first;
  const auto consider = [&](Duration at) { first = std::min(first.value_or(at), at); };
  for (const auto& [name, heard] : names_) {
    if (heard.is_overdue) consider(report_at_);
    if (heard.expiring) consider(heard.expires_at);
  }
  return first;
}

void OverdueNames::forget_told() {
  std::erase_if(
      names_, [](const auto& entry) { return !entry.second.is_overdue && !entry.second.expiring; });
}

std::vector<Presence> OverdueNames::take_presence(const Seen& seen) {
  std::vector<Presence> overdue;
  for (auto& [name, heard] : names_) {
    if (!std::exchange(heard.is_overdue, false)) continue;
    Presence presence = heard.with(seen(name));
    // Else it was decided meanwhile.
    if (!presence.ready.empty()) overdue.push_back(std::move(presence));
  }
  forget_told();
  return overdue;
}

std::optional<std::string> OverdueNames::take_warning(Duration now, std::span<const int> ranks,
                                                      const Seen& seen) {
  if (report_at_ > now) return std::nullopt;
  const std::vector<Presence> overdue = take_presence(seen);
  if (overdue.empty()) return std::nullopt;
  quiet_until_ = now + warning_interval_;
  return overdue_text(set_, overdue, ranks);
}

std::vector<Expired> OverdueNames::take_expired(Duration now, const Seen& seen) {
  std::vector<Expired> expired;
  for (auto& [name, heard] : names_) {
    if (!heard.expiring || heard.expires_at > now) continue;
    Presence presence = heard.with(seen(name));
    // Where the rank does not wait for others any more, it has been decided meanwhile.
    if (std::ranges::binary_search(presence.ready, heard.expiring->rank)) {
      expired.push_back({*heard.expiring, std::move(presence)});
    }
    heard.expiring.reset();
  }
  forget_told();
  return expired;
}

std::vector<std::string> OverdueNames::take_questions(std::size_t bytes) {
  std::vector<std::string> names;
  for (std::size_t taken = 0; !to_ask_.empty() && taken < bytes; to_ask_.pop_front()) {
    taken += to_ask_.front().size();
    names.push_back(std::move(to_ask_.front()));
  }
  return names;
}

Presence OverdueNames::completed(Presence own) const {
  const auto entry = names_.find(own.name);
  const bool expires = entry != names_.end() && entry->second.expiring;
  return expires ? entry->second.with(own) : std::move(own);
}

}  // namespace hora::internal
