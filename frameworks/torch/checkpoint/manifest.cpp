#include "frameworks/torch/checkpoint/manifest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <tuple>

namespace hora::internal {

std::string checksum_of(std::span<const std::byte> bytes) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(bytes.data(), bytes.size()));
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text.push_back(kDigits[byte >> 4]);
    text.push_back(kDigits[byte & 15]);
  }
  return text;
}

namespace {

constexpr const char* kFormat = "hora checkpoint";
constexpr int kVersion = 1;
constexpr std::size_t kDigits = 32;
constexpr std::string_view kBeforeChecksum = "  \"checksum\": \"";
constexpr std::string_view kAfterChecksum = "\"\n}\n";

std::string checksum_of_text(std::string_view text) {
  return checksum_of(std::as_bytes(std::span(text.data(), text.size())));
}

/// Names lead to nothing outside of the folder.
bool is_plain_name(const std::string& name) {
  return !name.empty() && name.front() != '.' && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  });
}

/// Says what is wrong with the text as such.
std::optional<std::string> damage_of(std::string_view text) {
  if (text.size() > kMaxManifestBytes) return "it is longer than 1 MiB";
  constexpr std::size_t kTail = kBeforeChecksum.size() + kDigits + kAfterChecksum.size();
  if (text.size() < kTail || !text.ends_with(kAfterChecksum) ||
      text.substr(text.size() - kTail, kBeforeChecksum.size()) != kBeforeChecksum) {
    return "it does not end with its checksum: it is cut short or damaged";
  }
  const std::size_t place = text.size() - kAfterChecksum.size() - kDigits;
  std::string zeroed(text);
  zeroed.replace(place, kDigits, kDigits, '0');
  if (checksum_of_text(zeroed) == text.substr(place, kDigits)) return std::nullopt;
  return "its text does not have the checksum that it names: it is damaged";
}

Manifest manifest_of(const nlohmann::json& json) {
  Manifest manifest;
  manifest.save = json.at("save").get<std::string>();
  manifest.step = json.at("step").get<std::int64_t>();
  manifest.epoch = json.at("epoch").get<std::int64_t>();
  manifest.time = json.at("time").get<std::int64_t>();
  manifest.ranks_of_nodes = json.at("ranks_of_nodes").get<std::vector<int>>();
  manifest.shards = json.at("shards").get<int>();
  manifest.shard = json.at("shard").get<int>();
  for (const auto& file : json.at("files")) {
    manifest.files.push_back({file.at("name").get<std::string>(),
                              file.at("bytes").get<std::uint64_t>(),
                              file.at("checksum").get<std::string>()});
  }
  return manifest;
}

std::string problem_of(const Manifest& manifest) {
  const int ranks = number_of_ranks(manifest);
  if (ranks < 1 || manifest.shards < 0 || manifest.shard < -1 ||
      manifest.shard >= manifest.shards) {
    return "its ranks or shards are none";
  }
  for (const ManifestFile& file : manifest.files) {
    if (!is_plain_name(file.name)) return "it names a file that is not in its folder";
  }
  return "";
}

}  // namespace

int number_of_ranks(const Manifest& manifest) {
  return std::accumulate(manifest.ranks_of_nodes.begin(), manifest.ranks_of_nodes.end(), 0);
}

std::string to_text(const Manifest& manifest) {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["save"] = manifest.save;
  json["step"] = manifest.step;
  json["epoch"] = manifest.epoch;
  json["time"] = manifest.time;
  json["ranks"] = number_of_ranks(manifest);
  json["ranks_of_nodes"] = manifest.ranks_of_nodes;
  json["shards"] = manifest.shards;
  json["shard"] = manifest.shard;
  json["files"] = nlohmann::ordered_json::array();
  for (const ManifestFile& file : manifest.files) {
    json["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"checksum", file.checksum}});
  }
  json["checksum"] = std::string(kDigits, '0');
  std::string text = json.dump(2) + "\n";
  text.replace(text.size() - kAfterChecksum.size() - kDigits, kDigits, checksum_of_text(text));
  return text;
}

tl::expected<Manifest, std::string> parse_manifest(std::string_view text) {
  if (const auto damage = damage_of(text)) return tl::unexpected(*damage);
  try {
    const auto json = nlohmann::json::parse(text);
    if (json.at("format") != kFormat || json.at("version") != kVersion) {
      return tl::unexpected("it is of another format than \"" + std::string(kFormat) +
                            "\", version " + std::to_string(kVersion) +
                            ": another version of hora has written it");
    }
    Manifest manifest = manifest_of(json);
    if (const std::string problem = problem_of(manifest); !problem.empty()) {
      return tl::unexpected(problem);
    }
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    return tl::unexpected(std::string("its JSON is none of a checkpoint: ") + error.what());
  }
}

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
