/// Files and folders as a checkpoint needs them: written through to the disk, read as a whole,
/// locked against a second writer. Links are not followed where something is created or read.
///
/// Errors: Error(invalid_argument) that names the path, and what the system says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace hora::internal {

/// A new file (mode 0600) that holds `bytes`, on the disk when it returns. There must be none.
void write_durably(const std::string& path, std::span<const std::byte> bytes);

/// Makes `bytes` the file `path` (mode 0600), which is whole at every moment: they are written
/// under a temporary name, "<path>.new-" and six random letters, and renamed when they are on the
/// disk. Concurrent calls: the last writer wins. Removes what a killed writer left an hour ago or
/// earlier.
void replace_durably(const std::string& path, std::span<const std::byte> bytes);

/// Makes the folder and those above it where they are missing (mode 0700), durably.
void make_folders(const std::string& folder);

/// The names in the folder are on the disk when it returns.
void sync_folder(const std::string& folder);

void rename_folder(const std::string& from, const std::string& to);

/// With all it holds; nothing where there is none.
void remove_folder(const std::string& folder);

/// Whether there is anything of this name, a link that leads nowhere included.
bool exists(const std::string& path);

/// Whether there is a folder of this name, no link.
bool is_folder(const std::string& path);

/// Returns the regular file's bytes. The error says why it cannot be read, or that it has more
/// than `most` bytes.
tl::expected<std::vector<std::byte>, std::string> read_file(const std::string& path,
                                                            std::uint64_t most);

/// Bytes of the regular file.
tl::expected<std::uint64_t, std::string> size_of_file(const std::string& path);

/// As long as it lives no other has one of the same folder, in this process or another. The system
/// gives it back where the process is killed.
class FolderLock {
 public:
  /// Throws where another one has it.
  explicit FolderLock(const std::string& folder);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock();

 private:
  int descriptor_ = -1;
};

}  // namespace hora::internal
