/// Files of a checkpoint: written through to the disk, checked when read, and renamed so that a
/// complete save is there at every moment. Knows no LibTorch. Links are not followed where
/// something is created or read.
///
/// A folder holds FOLDER/last, FOLDER/previous and FOLDER/best, each with its files and their
/// manifest.json. A save is written into FOLDER/.new: each file in the order that is given, then
/// the manifest, each with fsync, then fsync of the folder. Only then folders are renamed: whenever
/// the process is killed, or the machine loses power, a folder with a manifest is complete.
///
/// Errors: Error(invalid_argument) that names the path, and what the system says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace hora::internal {

/// Makes `bytes` the file `path` (mode 0600), which is whole at every moment: they are written
/// under a temporary name, "<path>.new-" and six random letters, and renamed when they are on the
/// disk. Concurrent calls: the last writer wins. Removes what a killed writer left an hour ago or
/// earlier.
void replace_durably(const std::string& path, std::span<const std::byte> bytes);

/// Returns the regular file's bytes. The error says why it cannot be read, or that it has more
/// than `most` bytes.
tl::expected<std::vector<std::byte>, std::string> read_file(const std::string& path,
                                                            std::uint64_t most);

struct ManifestFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::string checksum;  ///< XXH3 with 128 bits, as `xxh128sum` prints it
  bool operator==(const ManifestFile&) const = default;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ManifestFile, name, bytes, checksum)

/// One part of a save: the main one, which holds weights and state, or the shard that a rank has
/// written for itself.
struct Manifest {
  std::string save;        ///< equal in all parts and copies of one save, and in no other
  std::int64_t step = 0;   ///< training steps made
  std::int64_t epoch = 0;  ///< epochs begun or completed, as the program counts
  /// Orders saves: seconds since 1970, or one more than the latest in the folder where that is
  /// more.
  std::int64_t time = 0;
  std::vector<int> ranks_of_nodes;  ///< ranks on each node
  int shards = 0;  ///< parts that belong to the save beside the main one: one a rank, or 0
  int shard = -1;  ///< which of them this is; -1: the main part
  std::vector<ManifestFile> files;
  bool operator==(const Manifest&) const = default;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Manifest, save, step, epoch, time, ranks_of_nodes, shards, shard,
                                   files)

/// `manifest.json`: JSON whose last member, "checksum", is that of the text itself with zeros in
/// place of its 32 digits: so a flipped bit anywhere in the text is found as well.
std::string to_text(const Manifest& manifest);
/// The error says what is wrong; also of a format that another version has written.
tl::expected<Manifest, std::string> parse_manifest(std::string_view text);

/// A part of a checkpoint that a rank has.
struct FoundPart {
  int rank = 0;
  std::string folder;  ///< on that rank: "last", "rank-3/last"
  Manifest manifest;
  bool in_memory = false;  ///< by Checkpoint::commit()
  bool operator==(const FoundPart&) const = default;
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FoundPart, rank, folder, manifest, in_memory)

/// Returns all parts of the complete save that was made last (of several with one time, that of
/// most steps): the main one, then the shards, of each the lowest rank's; empty: there is none.
/// `slot`, where it is not empty: its main part lies in the folder of this name. Pure, and so the
/// same on every rank.
std::vector<FoundPart> newest_complete(std::span<const FoundPart> found,
                                       std::string_view slot = "");

/// Shards of this main part that no rank has.
std::vector<int> missing_shards(const Manifest& main, std::span<const FoundPart> found);

inline constexpr std::string_view kLast = "last";
inline constexpr std::string_view kPrevious = "previous";
inline constexpr std::string_view kBest = "best";

struct FileImage {
  std::string name;
  std::span<const std::byte> bytes;
};

/// Owns a file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() { close(); }
  int get() const { return number_; }
  /// Returns close()'s result, for file systems that write then.
  int close();

 private:
  int number_;
};

/// Writes into one folder. Thread rule: one thread at a time.
class CheckpointFolder {
 public:
  /// Nothing is touched before the first write(). `reuses_files`: the previous one is written over,
  /// so that memory need not be had anew; it is lost where a write fails.
  explicit CheckpointFolder(std::string folder, bool reuses_files = false) noexcept
      : folder_(std::move(folder)), reuses_files_(reuses_files) {}

  /// Makes the files, with the manifest's `files` filled in, the last checkpoint; the one that was
  /// becomes the previous one; where `best`, it is the best one as well. `complete`: the newest
  /// save that all ranks have completely, which stays also where a newer one is in its way. On an
  /// error everything that was there is still there. Throws, too, where the folder has another
  /// writer.
  void write(Manifest manifest, std::span<const FileImage> files, bool best,
             const std::string& complete);

 private:
  std::string folder_;
  bool reuses_files_;
  std::optional<Descriptor> lock_;  ///< from the first write on; a killed process gives it back
};

struct FolderContents {
  /// Folders with a manifest, all of whose files are there and as long as it says; of rank 0.
  std::vector<FoundPart> found;
  std::vector<std::string> refused;  ///< why others are not among them, each with its path
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FolderContents, found, refused)

/// Returns the contents of the folder and of its "rank-..." folders; reads the manifests alone.
/// Nothing where `folder` is empty.
FolderContents contents_of_folder(const std::string& folder);

/// The file's bytes, checked. The error names the path, and what is wrong.
tl::expected<std::vector<std::byte>, std::string> read_checked(const std::string& folder,
                                                               const ManifestFile& file);

}  // namespace hora::internal
