/// `manifest.json` of a checkpoint: which save it is of, and which files it consists of, with their
/// checksums; and which of the checkpoints that ranks have is loaded. Pure, and so the same on
/// every rank.
///
/// JSON whose last member, "checksum", is that of the text itself with zeros in place of its 32
/// digits: so a flipped bit anywhere in the text is found as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace hora::internal {

/// Checksum of a file: XXH3 with 128 bits, as 32 hexadecimal digits (libxxhash's
/// XXH128_canonicalFromHash, and what `xxh128sum` prints). It finds every flip and truncation but
/// one in 2^128, at several times the speed of CRC-32, which with its 32 bits would miss one in
/// 2^32 of longer damage. It is no protection against forgery.
std::string checksum_of(std::span<const std::byte> bytes);

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
  /// Orders saves: seconds since 1970, or one more than the latest in the folder where that is
  /// more.
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

/// A part of a checkpoint that a rank has.
struct FoundPart {
  int rank = 0;
  std::string folder;  ///< on that rank: "last", "rank-3/last"
  Manifest manifest;
  bool operator==(const FoundPart&) const = default;
};

/// All parts of one save: the main one, then the shards in their order. Of each the lowest rank
/// that has it.
using CompleteSet = std::vector<FoundPart>;

/// The complete set that was saved last; of several with one time, that of most steps. `slot`,
/// where it is not empty: its main part lies in the folder of this name.
std::optional<CompleteSet> newest_complete(std::span<const FoundPart> found,
                                           std::string_view slot = "");

/// Shards of this main part that no rank has.
std::vector<int> missing_shards(const Manifest& main, std::span<const FoundPart> found);

}  // namespace hora::internal
