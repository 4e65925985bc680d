/// Which of the checkpoints that ranks have is loaded, and who reads what of it. Pure: the same on
/// every rank.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frameworks/torch/checkpoint/manifest.h"

namespace hora::internal {

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
