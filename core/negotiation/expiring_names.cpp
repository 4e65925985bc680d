#include <algorithm>
#include <utility>

#include "core/negotiation/overdue_names.h"

namespace hora::internal {

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
