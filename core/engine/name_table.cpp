#include <algorithm>
#include <utility>

#include "core/engine/operations.h"

namespace hora::internal {

std::shared_ptr<Submission> NameTable::enter_again(std::string_view name) {
  const auto found = entries_.find(name);
  if (found == entries_.end()) return nullptr;
  NameEntry& entry = found->second;
  const auto spare = std::find_if(entry.spares.begin(), entry.spares.end(),
                                  [](const auto& each) { return each.use_count() == 1; });
  if (entry.submission || spare == entry.spares.end()) return nullptr;
  // The table's is the only reference, so nothing else will touch it. Others were dropped by other
  // threads, each by a decrement that releases; use_count() is relaxed, but the decrement of one
  // more reference acquires what all of them have done with the submission.
  { const std::shared_ptr<Submission> acquired = *spare; }
  entry.submission = std::move(*spare);
  entry.submission->renew();
  entry.submission->entry = &entry;
  return entry.submission;
}

bool NameTable::enter(const std::shared_ptr<Submission>& submission) {
  NameEntry& entry = entries_[submission->name];
  if (entry.submission) return false;
  entry.submission = submission;
  submission->entry = &entry;
  return true;
}

void NameTable::leave(const Submission& submission) {
  NameEntry* const entry = submission.entry;
  if (!entry) return;
  entry->submission->entry = nullptr;
  if (!entry->id) {
    entries_.erase(entries_.find(submission.name));
    return;
  }
  const auto place = std::find(entry->spares.begin(), entry->spares.end(), nullptr);
  std::shared_ptr<Submission> ended = std::move(entry->submission);
  if (place != entry->spares.end()) *place = std::move(ended);
}

std::string NameTable::unnamed(std::string_view prefix) const {
  for (std::size_t k = 0;; ++k) {
    std::string name = std::string(prefix) + "." + std::to_string(k);
    const auto entry = entries_.find(name);
    if (entry == entries_.end() || !entry->second.submission) return name;
  }
}

std::shared_ptr<Submission> NameTable::waiting_for(Id id) const {
  const auto& submission = in_flight_[static_cast<std::size_t>(slot_of(id))];
  return submission && submission->id == id ? submission : nullptr;
}

std::shared_ptr<Submission> NameTable::take_waiting(Id id) {
  auto& submission = in_flight_[static_cast<std::size_t>(slot_of(id))];
  return submission && submission->id == id ? std::move(submission) : nullptr;
}

void NameTable::set_waiting(Id id, std::shared_ptr<Submission> submission) {
  in_flight_[static_cast<std::size_t>(slot_of(id))] = std::move(submission);
}

std::shared_ptr<Submission> NameTable::undecided(const std::string& name) const {
  const auto entry = entries_.find(name);
  if (entry == entries_.end() || !entry->second.submission) return nullptr;
  const auto& submission = entry->second.submission;
  return submission->decided || submission->finished() ? nullptr : submission;
}

std::shared_ptr<Submission> NameTable::assign(const std::string& name, Id id) {
  const auto submission = undecided(name);
  if (!submission) return nullptr;
  learn(name, id, submission->signature);
  submission->id = id;
  submission->last_extents = submission->entry->last_extents;
  return submission;
}

std::shared_ptr<Submission> NameTable::retire(Id id) {
  const auto named = names_of_ids_.extract(id);
  if (named.empty()) return nullptr;
  const auto entry = entries_.find(named.mapped());
  if (entry == entries_.end() || entry->second.id != id) return nullptr;
  entry->second.id.reset();
  const std::shared_ptr<Submission> submission = entry->second.submission;
  if (!submission) {
    entries_.erase(entry);
    return nullptr;
  }
  if (submission->id != id || submission->decided) return nullptr;
  submission->id.reset();
  set_waiting(id, nullptr);
  return submission;
}

std::shared_ptr<Submission> NameTable::take_undecided(const std::string& name) {
  const auto submission = undecided(name);
  if (submission && submission->id) set_waiting(*submission->id, nullptr);
  return submission;
}

std::vector<std::shared_ptr<Submission>> NameTable::unfinished() const {
  std::vector<std::shared_ptr<Submission>> result = uncollected();
  std::erase_if(result, [](const auto& submission) { return submission->finished(); });
  return result;
}

std::vector<std::shared_ptr<Submission>> NameTable::uncollected() const {
  std::vector<std::shared_ptr<Submission>> result;
  for (const auto& [name, entry] : entries_) {
    if (entry.submission) result.push_back(entry.submission);
  }
  return result;
}

void NameTable::learn(const std::string& name, Id id, const Signature& signature) {
  NameEntry& entry = entries_[name];
  if (entry.id) names_of_ids_.erase(*entry.id);
  entry.id = id;
  entry.signature = signature;
  entry.last_extents =
      extents_may_differ(signature.kind) ? std::make_shared<LastExtents>() : nullptr;
  names_of_ids_[id] = name;
}

const Signature* NameTable::signature_of(Id id) const {
  const auto name = names_of_ids_.find(id);
  if (name == names_of_ids_.end()) return nullptr;
  const NameEntry& entry = entries_.at(name->second);
  return entry.id == id ? &entry.signature : nullptr;
}

std::optional<std::string> NameTable::taken() const {
  for (const auto& [name, entry] : entries_) {
    if (entry.submission) return name;
  }
  return std::nullopt;
}

}  // namespace hora::internal
