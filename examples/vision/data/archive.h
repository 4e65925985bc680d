/// Files out of a tar archive.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace vision {

/// The contents of those regular files of a tar archive, packed by gzip or not, whose names are
/// `wanted`; those that it lacks are missing from the result. Nothing is written to disk. The whole
/// archive is read, so that gzip's checksum covers what is returned.
///
/// Throws std::runtime_error that begins with the path: for an archive that is corrupt or ends too
/// early, has a wanted file twice or of more than `most_bytes_each`, or unpacks to more than 2 GiB.
std::map<std::string, std::vector<std::uint8_t>> read_archive(const std::filesystem::path& path,
                                                              const std::set<std::string>& wanted,
                                                              std::uint64_t most_bytes_each);

}  // namespace vision
