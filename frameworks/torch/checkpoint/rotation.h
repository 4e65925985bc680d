/// In which order the folders of a checkpoint are renamed, so that a complete one is there at every
/// moment. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

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

/// What is staged, where it is complete, takes its place: the last one becomes the previous one, or
/// is discarded where the previous one is kept. At each moment the last, the previous or the staged
/// one is complete. What is not complete is removed. After a save, and before the next for what a
/// killed one has left.
std::vector<Move> rotation_plan(const SlotsThere& there);

}  // namespace hora::internal
