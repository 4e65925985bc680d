#include "frameworks/torch/checkpoint/checkpoint_folder.h"

#include <hora/printable.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "frameworks/torch/checkpoint/manifest.h"

namespace hora::internal {
namespace {

Move renaming(std::string_view from, std::string_view to) {
  return {std::string(from), std::string(to)};
}

Move removal(std::string_view what) {
  return {std::string(what), ""};
}

}  // namespace

std::vector<std::string_view> slots() {
  return {kLast, kPrevious, kBest, kStaged, kStagedBest, kDiscarded, kDiscardedBest};
}

std::vector<Move> rotation_plan(const SlotsThere& there) {
  // A folder is renamed to a name that is free.
  std::vector<Move> plan{removal(kDiscarded), removal(kDiscardedBest)};
  if (there.staged) {
    if (there.last && there.previous) {
      plan.push_back(renaming(there.previous_is_kept ? kLast : kPrevious, kDiscarded));
    }
    if (there.last && !(there.previous && there.previous_is_kept)) {
      plan.push_back(renaming(kLast, kPrevious));
    }
    plan.push_back(renaming(kStaged, kLast));
  } else {
    plan.push_back(removal(kStaged));
  }
  if (there.staged_best) {
    if (there.best) plan.push_back(renaming(kBest, kDiscardedBest));
    plan.push_back(renaming(kStagedBest, kBest));
  } else {
    plan.push_back(removal(kStagedBest));
  }
  plan.push_back(removal(kDiscardedBest));
  plan.push_back(removal(kDiscarded));
  return plan;
}

namespace {

std::string join(const std::string& folder, std::string_view name) {
  return folder + "/" + std::string(name);
}

/// Why the folder is no complete checkpoint, else its manifest.
tl::expected<Manifest, std::string> look_at(const std::string& folder) {
  if (!is_folder(folder)) {
    return tl::unexpected(in_quotes(folder) + ": it is no folder (links are not followed)");
  }
  const std::string path = join(folder, kManifestName);
  const auto bytes = read_file(path, kMaxManifestBytes);
  if (!bytes) return tl::unexpected(in_quotes(path) + ": " + bytes.error());
  auto manifest = parse_manifest({reinterpret_cast<const char*>(bytes->data()), bytes->size()});
  if (!manifest) return tl::unexpected(in_quotes(path) + ": " + manifest.error());
  for (const ManifestFile& file : manifest->files) {
    const std::string file_path = join(folder, file.name);
    const auto size = size_of_file(file_path);
    if (!size) return tl::unexpected(in_quotes(file_path) + ": " + size.error());
    if (*size != file.bytes) {
      return tl::unexpected(in_quotes(file_path) + ": it has " + std::to_string(*size) +
                            " bytes; expected " + std::to_string(file.bytes));
    }
  }
  return manifest;
}

bool is_of(const std::string& folder, const std::string& save) {
  const auto manifest = look_at(folder);
  return manifest && manifest->save == save;
}

SlotsThere slots_there(const std::string& folder, const std::string& complete) {
  return {.last = exists(join(folder, kLast)),
          .previous = exists(join(folder, kPrevious)),
          .best = exists(join(folder, kBest)),
          .staged = look_at(join(folder, kStaged)).has_value(),
          .staged_best = look_at(join(folder, kStagedBest)).has_value(),
          .previous_is_kept =
              is_of(join(folder, kPrevious), complete) && !is_of(join(folder, kLast), complete)};
}

void rotate(const std::string& folder, const std::string& complete) {
  for (const Move& move : rotation_plan(slots_there(folder, complete))) {
    if (move.to.empty()) {
      remove_folder(join(folder, move.from));
    } else {
      rename_folder(join(folder, move.from), join(folder, move.to));
    }
  }
  sync_folder(folder);
}

}  // namespace

std::string CheckpointFolder::path(std::string_view slot) const {
  return join(folder_, slot);
}

void CheckpointFolder::stage(std::string_view slot, const Manifest& manifest,
                             std::span<const FileImage> files) const {
  make_folders(path(slot));
  for (const FileImage& file : files) write_durably(join(path(slot), file.name), file.bytes);
  const std::string text = to_text(manifest);
  write_durably(join(path(slot), kManifestName),
                std::as_bytes(std::span(text.data(), text.size())));
  sync_folder(path(slot));
}

/// The same files under a second name, where the file system can, else once more.
void CheckpointFolder::stage_best(const Manifest& manifest,
                                  std::span<const FileImage> files) const {
  make_folders(path(kStagedBest));
  std::vector<std::string> names;
  for (const FileImage& file : files) names.push_back(file.name);
  names.emplace_back(kManifestName);
  for (const std::string& name : names) {
    const std::string from = join(path(kStaged), name);
    if (::link(from.c_str(), join(path(kStagedBest), name).c_str()) == 0) continue;
    remove_folder(path(kStagedBest));
    return stage(kStagedBest, manifest, files);
  }
  sync_folder(path(kStagedBest));
}

void CheckpointFolder::write(Manifest manifest, std::span<const FileImage> files, bool best,
                             const std::string& complete) {
  make_folders(folder_);
  if (!lock_) lock_.emplace(folder_);
  rotate(folder_, complete);
  manifest.files.clear();
  for (const FileImage& file : files) {
    manifest.files.push_back({file.name, file.bytes.size(), checksum_of(file.bytes)});
  }
  try {
    stage(kStaged, manifest, files);
    if (best) stage_best(manifest, files);
  } catch (...) {
    // The disk may be full: what is of no use takes no place.
    std::error_code ignored;
    std::filesystem::remove_all(path(kStagedBest), ignored);
    std::filesystem::remove_all(path(kStaged), ignored);
    throw;
  }
  rotate(folder_, complete);
}

FolderContents contents_of_folder(const std::string& folder) {
  FolderContents contents;
  for (const std::string_view slot : slots()) {
    const std::string path = join(folder, slot);
    if (!exists(path)) continue;
    if (auto manifest = look_at(path)) {
      contents.found.push_back({std::string(slot), std::move(*manifest)});
    } else if (!slot.starts_with('.')) {  // else a save that was not completed
      contents.refused.push_back(manifest.error());
    }
  }
  return contents;
}

tl::expected<std::vector<std::byte>, std::string> read_checked(const std::string& folder,
                                                               const ManifestFile& file) {
  const std::string path = join(folder, file.name);
  auto bytes = read_file(path, file.bytes);
  if (!bytes) return tl::unexpected(in_quotes(path) + ": " + bytes.error());
  if (bytes->size() != file.bytes) {
    return tl::unexpected(in_quotes(path) + ": it has " + std::to_string(bytes->size()) +
                          " bytes; expected " + std::to_string(file.bytes));
  }
  if (const std::string checksum = checksum_of(*bytes); checksum != file.checksum) {
    return tl::unexpected(in_quotes(path) + ": its checksum is " + checksum + "; expected " +
                          file.checksum + ": it is damaged");
  }
  return bytes;
}

}  // namespace hora::internal
