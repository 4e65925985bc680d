#include "frameworks/torch/checkpoint/checkpoint_loader.h"

#include <hora/collectives.h>
#include <hora/error.h>
#include <hora/objects.h>
#include <hora/objects_json.h>
#include <hora/printable.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "core/base/diagnostics.h"
#include "core/base/text.h"
#include "frameworks/torch/checkpoint/checkpoint_folder.h"
#include "frameworks/torch/checkpoint/checkpoint_writer.h"
#include "frameworks/torch/checkpoint/manifest.h"

namespace hora::internal {
namespace {

/// The checkpoints of all ranks, the same on each.
struct Candidates {
  std::vector<FoundPart> found;
  std::vector<std::string> refused;
};

nlohmann::json report_of(const std::string& folder) {
  nlohmann::json report = {{"found", nlohmann::json::array()},
                           {"refused", nlohmann::json::array()}};
  const auto add = [&](const std::string& below) {
    const FolderContents contents = contents_of_folder(folder + "/" + below);
    for (const FoundCheckpoint& one : contents.found) {
      report["found"].push_back(
          {{"folder", below + one.slot}, {"manifest", to_text(one.manifest)}});
    }
    for (const std::string& why : contents.refused) report["refused"].push_back(why);
  };
  add("");
  std::vector<std::string> of_ranks;
  std::error_code ignored;  // a node may lack the folder
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("rank-")) of_ranks.push_back(name + "/");
  }
  std::ranges::sort(of_ranks);
  for (const std::string& below : of_ranks) add(below);
  return report;
}

Candidates look_on_all_ranks(const Context& context, const std::string& folder,
                             std::chrono::milliseconds timeout) {
  nlohmann::json own;
  if (context.local_rank() == 0) own = report_of(folder);
  barrier(context, {.name = "hora.checkpoint.looked", .timeout = timeout});
  Candidates all;
  const auto reports = allgather_object(context, own, {.name = "hora.checkpoint.found"});
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].is_null()) continue;
    for (const auto& one : reports[rank].at("found")) {
      auto manifest = parse_manifest(one.at("manifest").get<std::string>());
      if (!manifest) continue;  // its rank has just parsed it
      all.found.push_back(
          {static_cast<int>(rank), one.at("folder").get<std::string>(), std::move(*manifest)});
    }
    for (const auto& why : reports[rank].at("refused")) {
      all.refused.push_back("rank " + std::to_string(rank) + ", " + why.get<std::string>());
    }
  }
  return all;
}

/// Reads files on one rank for all.
class FileReader {
 public:
  FileReader(const Context& context, const std::string& folder, std::chrono::milliseconds timeout)
      : context_(context), folder_(folder), timeout_(timeout) {}

  /// Adds what the part holds. What is wrong with it, the same on every rank; empty: nothing.
  std::string read(const FoundPart& part, LoadedCheckpoint& into) const;

 private:
  tl::expected<ImageContents, std::string> read_file(const FoundPart& part,
                                                     const ManifestFile& file) const;

  const Context& context_;
  const std::string& folder_;
  const std::chrono::milliseconds timeout_;
};

tl::expected<ImageContents, std::string> FileReader::read_file(const FoundPart& part,
                                                               const ManifestFile& file) const {
  Bytes bytes;
  std::string problem;
  if (context_.rank() == part.rank) {
    auto read = read_checked(folder_ + "/" + part.folder, file);
    if (read) {
      bytes = std::move(*read);
    } else {
      problem = read.error();
    }
  }
  barrier(context_, {.name = "hora.checkpoint.read", .timeout = timeout_});
  problem = broadcast_object(context_, std::string_view(problem),
                             {.name = "hora.checkpoint.problem", .root = part.rank});
  if (!problem.empty()) return tl::unexpected(problem);
  bytes = broadcast_object(context_, std::span<const std::byte>(bytes),
                           {.name = "hora.checkpoint.file", .root = part.rank});
  auto contents = contents_of(std::make_shared<const Bytes>(std::move(bytes)));
  if (contents) return contents;
  return tl::unexpected(in_quotes(part.folder + "/" + file.name) + ": " + contents.error());
}

std::set<std::string> names_in(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::set<std::string> names;
  if (!json.is_array()) return names;
  for (const auto& name : json) {
    if (name.is_string()) names.insert(name.get<std::string>());
  }
  return names;
}

std::string FileReader::read(const FoundPart& part, LoadedCheckpoint& into) const {
  for (const ManifestFile& file : part.manifest.files) {
    auto contents = read_file(part, file);
    if (!contents) return contents.error();
    if (file.name == kWeightsFile) {
      into.weights = std::move(contents->tensors);
    } else if (file.name == kStateFile) {
      try {
        take_entries(into.parts, contents->tensors);
      } catch (const Error& error) {
        return in_quotes(part.folder + "/" + file.name) + ": " + error.what();
      }
      if (part.manifest.shard < 0) into.names = names_in(contents->metadata[kPartsKey]);
    }
  }
  return "";
}

void warn(const Context& context, const std::string& refused) {
  if (context.rank() != 0) return;
  log_warning("Checkpoint: refused: " + refused + ". The next one that is complete is taken");
}

[[noreturn]] void refuse_all(const std::string& folder, const std::string& slot,
                             const Candidates& all) {
  std::string text = "Checkpoint: " + in_quotes(folder + (slot.empty() ? "" : "/" + slot)) +
                     " holds no checkpoint that is complete and undamaged on any rank";
  for (const std::string& why : all.refused) text += "; " + why;
  for (const FoundPart& part : all.found) {
    if (part.manifest.shard >= 0 || (!slot.empty() && part.folder != slot)) continue;
    const auto missing = missing_shards(part.manifest, all.found);
    if (missing.empty()) continue;
    text += "; of " + in_quotes(part.folder) + " of rank " + std::to_string(part.rank) +
            " no rank has the shards that " + named_ranks(missing) + " wrote";
  }
  throw Error(ErrorCode::invalid_argument,
              text + ". Name another folder or slot, or remove this one to begin anew");
}

}  // namespace

std::optional<LoadedCheckpoint> load_newest(const Context& context, const std::string& folder,
                                            const std::string& slot,
                                            std::chrono::milliseconds timeout) {
  const FileReader reader(context, folder, timeout);
  Candidates all = look_on_all_ranks(context, folder, timeout);
  for (const std::string& why : all.refused) warn(context, why);
  std::int64_t latest = 0;
  for (const FoundPart& part : all.found) latest = std::max(latest, part.manifest.time);
  while (const auto set = newest_complete(all.found, slot)) {
    LoadedCheckpoint loaded;
    loaded.manifest = set->front().manifest;
    loaded.from = in_quotes(set->front().folder) + " of rank " + std::to_string(set->front().rank);
    loaded.latest = latest;
    const FoundPart* damaged = nullptr;
    for (const FoundPart& part : *set) {
      const std::string problem = reader.read(part, loaded);
      if (problem.empty()) continue;
      all.refused.push_back("rank " + std::to_string(part.rank) + ", " + problem);
      warn(context, all.refused.back());
      damaged = &part;
      break;
    }
    if (damaged == nullptr) return loaded;
    std::erase(all.found, *damaged);
  }
  const auto is_main = [](const FoundPart& part) { return part.manifest.shard < 0; };
  if (slot.empty() && all.refused.empty() && std::ranges::none_of(all.found, is_main)) {
    return std::nullopt;
  }
  refuse_all(folder, slot, all);
}

}  // namespace hora::internal
