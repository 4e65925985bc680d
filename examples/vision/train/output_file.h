/// Files that appear complete or not at all.
#pragma once

#include <filesystem>
#include <string_view>

namespace vision {

/// Throws std::runtime_error where write_file(path) could not succeed: the folder does not exist or
/// cannot be written to, or `path` is something other than a file. To be called before the work.
void check_writable(const std::filesystem::path& path);

/// Makes a folder, and those above it, where there is none. Throws std::system_error, which names
/// it, where it cannot be made or written to.
void make_folder(const std::filesystem::path& folder);

/// Replaces the file by `bytes`: temporary file beside it (mode 0600), fsync, rename, fsync of the
/// folder. Throws std::system_error naming the path; the old file is then still there.
void write_file(const std::filesystem::path& path, std::string_view bytes);

}  // namespace vision
