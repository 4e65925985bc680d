/// Who comes last to collectives, and how late: what no rank's own clock shows, since a step takes
/// as long on every rank.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/process.h"

namespace hora::internal {

/// The last of some ranks to become ready for an id.
struct LastArrival {
  using Time = std::chrono::nanoseconds;
  static constexpr Time kAlone = Time::max();

  int rank = -1;       ///< world rank; -1: none of them has submitted it
  Time at{};           ///< when it became ready, by the clock of the leader that says so
  Time late = kAlone;  ///< after the one before it; kAlone: there is none
  bool operator==(const LastArrival&) const = default;
};

/// The last of two groups of ranks: late after the one before it in either. Pure.
LastArrival later_of(const LastArrival& a, const LastArrival& b);

/// Counts by four classes an octave, of fixed size: a quantile is right within a tenth of its
/// value. Pure. Thread rule: one thread at a time.
class LatenessHistogram {
 public:
  void add(std::chrono::nanoseconds late);
  /// Zero where nothing was added. `share`: 0.5: the median.
  std::chrono::nanoseconds quantile(double share) const;
  std::uint64_t count() const { return count_; }

 private:
  static constexpr std::size_t kParts = 4;
  std::uint64_t count_ = 0;
  std::array<std::uint32_t, 64 * kParts> classes_{};
};

/// A rank that keeps all others waiting.
struct SlowRank {
  int rank = 0;
  double share = 0;                     ///< of the decisions to which it came last
  double held_up = 0;                   ///< of the time in which all others waited for it
  std::chrono::nanoseconds per_step{};  ///< of that time
  std::chrono::nanoseconds window{};    ///< in which that was
  bool operator==(const SlowRank&) const = default;
};

/// The root's, of one process set, of collectives that are known by an id. A *step* ends where an
/// id comes again that it has had already. A rank *holds up* a step by its greatest lateness in it:
/// all other ranks had become ready for something for which it had not. What is late together with
/// it, as the buckets of one backward pass are, costs nothing more; where a step waits several
/// times, it is the least that it costs. Pure: the time is in what is added. Does not allocate
/// after construction. Thread rule: one thread at a time.
class ArrivalLedger {
 public:
  /// A window ends when it has all of these: collectives of one step are late together, so that
  /// steps are what counts against chance.
  static constexpr int kDecisions = 50;
  static constexpr int kSteps = 25;
  static constexpr std::chrono::seconds kWindow{10};
  /// A rank is slow that comes last to more than this share, and holds up more than that.
  static constexpr double kLastShare = 0.8;
  static constexpr double kHeldUpShare = 0.05;

  /// `ranks`: world ranks of the set, ascending.
  ArrivalLedger(std::vector<int> ranks, int id_capacity);

  /// An id of this slot (Id) is decided. Where that ends a window with a slow rank: which, at
  /// growing intervals for each rank. Ignores ranks that are not of the set.
  std::optional<SlowRank> add(std::size_t slot, const LastArrival& last);

  std::uint64_t decisions() const { return decisions_; }
  const std::vector<int>& ranks() const { return ranks_; }
  /// How late the rank was where it came last.
  const LatenessHistogram& lateness_of(std::size_t index) const { return rows_[index].lateness; }

 private:
  struct Row {
    LatenessHistogram lateness;
    // Of the window:
    std::uint32_t last = 0;
    std::chrono::nanoseconds held_up{};   ///< in steps before `step`
    std::chrono::nanoseconds greatest{};  ///< lateness in `step`
    std::uint32_t step = 0;
    // Of its warnings: windows to be slow in until the next, and how many that were last time.
    std::uint32_t quiet = 0;
    std::uint32_t interval = 1;
  };
  static void end_step(Row& row);
  std::optional<SlowRank> end_window(std::chrono::nanoseconds time);

  std::vector<int> ranks_;
  std::vector<Row> rows_;                ///< by index in `ranks_`
  std::vector<std::uint32_t> steps_of_;  ///< by slot: the last step in which it was
  std::uint32_t step_ = 1;
  std::uint64_t decisions_ = 0;
  // Of the window:
  std::chrono::nanoseconds begin_{};
  std::uint32_t window_step_ = 1;
  std::uint32_t window_decisions_ = 0;
};

/// Two sentences: the rank, its host, how late it is and what that costs, and what to look at.
std::string slow_rank_text(const SlowRank& slow, const ProcessIdentity& process);

/// The final report's table: a line for each rank, the most frequent last one first.
std::string arrivals_text(const ArrivalLedger& ledger, std::span<const ProcessIdentity> processes);

}  // namespace hora::internal
