#include "frameworks/torch/checkpoint/newest_set.h"

#include <algorithm>
#include <tuple>

namespace hora::internal {
namespace {

/// The lowest rank's.
const FoundPart* find_shard(const Manifest& main, int shard, std::span<const FoundPart> found) {
  const FoundPart* first = nullptr;
  for (const FoundPart& part : found) {
    if (part.manifest.save != main.save || part.manifest.shard != shard) continue;
    if (first == nullptr || part.rank < first->rank) first = &part;
  }
  return first;
}

std::optional<CompleteSet> complete(const FoundPart& main, std::span<const FoundPart> found) {
  CompleteSet set{main};
  for (int shard = 0; shard < main.manifest.shards; ++shard) {
    const FoundPart* const part = find_shard(main.manifest, shard, found);
    if (part == nullptr) return std::nullopt;
    set.push_back(*part);
  }
  return set;
}

}  // namespace

std::optional<CompleteSet> newest_complete(std::span<const FoundPart> found,
                                           std::string_view slot) {
  std::vector<const FoundPart*> mains;
  for (const FoundPart& part : found) {
    if (part.manifest.shard < 0 && (slot.empty() || part.folder == slot)) mains.push_back(&part);
  }
  std::ranges::stable_sort(mains, [](const FoundPart* a, const FoundPart* b) {
    const auto age = [](const Manifest& m) { return std::tie(m.time, m.step, m.save); };
    if (age(a->manifest) != age(b->manifest)) return age(a->manifest) > age(b->manifest);
    return a->rank < b->rank;
  });
  for (const FoundPart* main : mains) {
    if (auto set = complete(*main, found)) return set;
  }
  return std::nullopt;
}

std::vector<int> missing_shards(const Manifest& main, std::span<const FoundPart> found) {
  std::vector<int> missing;
  for (int shard = 0; shard < main.shards; ++shard) {
    if (find_shard(main, shard, found) == nullptr) missing.push_back(shard);
  }
  return missing;
}

}  // namespace hora::internal
