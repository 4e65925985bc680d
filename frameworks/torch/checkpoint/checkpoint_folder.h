/// The files of one part of a checkpoint: FOLDER/last, FOLDER/previous and FOLDER/best, each with
/// its files and their manifest.json; and in which order these folders are renamed, so that a
/// complete one is there at every moment.
///
/// A save is written into FOLDER/.new: each file in the order that is given, then the manifest,
/// each with fsync, then fsync of the folder. Only then folders are renamed (rotation_plan()). So
/// whenever the process is killed, or the machine loses power, a folder with a manifest is
/// complete.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "frameworks/torch/checkpoint/durable_file.h"
#include "frameworks/torch/checkpoint/manifest.h"

namespace hora::internal {

/// Folders of a checkpoint. A save is written into kStaged (and kStagedBest) completely; then it is
/// renamed.
inline constexpr std::string_view kLast = "last";
inline constexpr std::string_view kPrevious = "previous";
inline constexpr std::string_view kBest = "best";
inline constexpr std::string_view kStaged = ".new";
inline constexpr std::string_view kStagedBest = ".new-best";
inline constexpr std::string_view kDiscarded = ".old";
inline constexpr std::string_view kDiscardedBest = ".old-best";

/// All of them, in the order in which they are looked at.
std::vector<std::string_view> slots();

/// Which of them are there; the staged ones count where they are complete.
struct SlotsThere {
  bool last = false;
  bool previous = false;
  bool best = false;
  bool staged = false;
  bool staged_best = false;
  /// The previous one, not the last one, is the newest that all ranks have completely.
  bool previous_is_kept = false;
};

struct Move {
  std::string from;
  std::string to;  ///< empty: `from` is removed
  bool operator==(const Move&) const = default;
};

/// Puts what is staged, where it is complete, in place: the last one becomes the previous one, or
/// is discarded where the previous one is kept. At each moment the last, the previous or the staged
/// one is complete. What is not complete is removed. After a save, and before the next for what a
/// killed one has left. Pure.
std::vector<Move> rotation_plan(const SlotsThere& there);

struct FileImage {
  std::string name;
  std::span<const std::byte> bytes;
};

/// Writes into one folder. Thread rule: one thread at a time.
class CheckpointFolder {
 public:
  /// Nothing is touched before the first write().
  explicit CheckpointFolder(std::string folder) noexcept : folder_(std::move(folder)) {}

  /// Makes the files, with the manifest's `files` filled in, the last checkpoint; the one that was
  /// becomes the previous one; where `best`, it is the best one as well. `complete`: the newest
  /// save that all ranks have completely, which stays also where a newer one is in its way. On an
  /// error everything that was there is still there. Throws as durable_file.h, and where the folder
  /// has another writer.
  void write(Manifest manifest, std::span<const FileImage> files, bool best,
             const std::string& complete);

 private:
  std::string path(std::string_view slot) const;
  void stage(std::string_view slot, const Manifest& manifest,
             std::span<const FileImage> files) const;
  void stage_best(const Manifest& manifest, std::span<const FileImage> files) const;

  std::string folder_;
  std::optional<FolderLock> lock_;  ///< from the first write on
};

/// A folder with a manifest, all of whose files are there and as long as it says.
struct FoundCheckpoint {
  std::string slot;  ///< "last", ...
  Manifest manifest;
};

struct FolderContents {
  std::vector<FoundCheckpoint> found;
  std::vector<std::string> refused;  ///< why others are not among them, each with its path
};

/// Returns the folder's contents; reads the manifests alone.
FolderContents contents_of_folder(const std::string& folder);

/// The file's bytes, checked. The error names the path, and what is wrong.
tl::expected<std::vector<std::byte>, std::string> read_checked(const std::string& folder,
                                                               const ManifestFile& file);

}  // namespace hora::internal
