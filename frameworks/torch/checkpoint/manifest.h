/// `manifest.json` of a checkpoint: which save it is of, and which files it consists of. Pure.
///
/// JSON whose last member, "checksum", is that of the text itself with zeros in place of its 32
/// digits: so a flipped bit anywhere in the text is found as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace hora::internal {

inline constexpr std::string_view kManifestName = "manifest.json";
/// A longer one is refused.
inline constexpr std::size_t kMaxManifestBytes = std::size_t{1} << 20;

struct ManifestFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::string checksum;
  bool operator==(const ManifestFile&) const = default;
};

/// One part of a save: the main one, which holds weights and state, or the shard that a rank has
/// written for itself.
struct Manifest {
  std::string save;        ///< equal in all parts and copies of one save, and in no other
  std::int64_t step = 0;   ///< training steps made
  std::int64_t epoch = 0;  ///< epochs begun or completed, as the program counts
  /// Seconds since 1970, when rank 0 began to save; later than those of all saves that it knew.
  std::int64_t time = 0;
  std::vector<int> ranks_of_nodes;  ///< ranks on each node
  int shards = 0;  ///< parts that belong to the save beside the main one: one a rank, or 0
  int shard = -1;  ///< which of them this is; -1: the main part
  std::vector<ManifestFile> files;
  bool operator==(const Manifest&) const = default;
};

std::string to_text(const Manifest& manifest);
/// The error says what is wrong; also of a format that another version has written.
tl::expected<Manifest, std::string> parse_manifest(std::string_view text);

/// The number of ranks that have saved.
int number_of_ranks(const Manifest& manifest);

}  // namespace hora::internal
