/// Parts of a training step, and who comes last to collectives in them.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/process.h"
#include "core/control_block/tensor_id.h"

namespace hora::internal {

/// A part of a training step, below kStepPhases.
using PhaseIndex = std::uint8_t;
/// Up to the first bucket of gradients: late there is late in its input or forward pass.
inline constexpr PhaseIndex kForwardPhase = 0;
inline constexpr PhaseIndex kBackwardPhase = 1;   ///< the other buckets
inline constexpr PhaseIndex kOptimizerPhase = 2;  ///< norms, and ends of rounds
inline constexpr PhaseIndex kTrainingPhase = 3;   ///< the program's own collectives
inline constexpr std::size_t kStepPhases = 4;
inline constexpr std::array<std::string_view, kStepPhases> kPhaseNames{
    "input and forward", "backward", "optimizer", "training"};

/// The phase of a collective, by the names that hora gives (core/base/text.h). Pure.
PhaseIndex phase_of(std::string_view collective);

/// The last of two groups of ranks: late after the one before it in either. Pure.
LastArrival later_of(const LastArrival& a, const LastArrival& b);

/// Counts by four classes an octave, of fixed size: a quantile is right within a tenth of its
/// value, from 128 ns to two hours. Pure. Thread rule: one thread at a time.
class LatenessHistogram {
 public:
  void add(std::chrono::nanoseconds late);
  void add(const LatenessHistogram& other);
  /// Zero where nothing was added. `share`: 0.5: the median.
  std::chrono::nanoseconds quantile(double share) const;
  std::uint64_t count() const { return count_; }

 private:
  static constexpr std::size_t kParts = 4;
  static constexpr int kFirstOctave = 7;
  static constexpr int kOctaves = 36;
  std::uint64_t count_ = 0;
  std::array<std::uint32_t, kOctaves * kParts> classes_{};
};

/// A rank that keeps all others waiting.
struct SlowRank {
  int rank = 0;
  double share = 0;                     ///< of the decisions to which it came last
  double held_up = 0;                   ///< of the time in which all others waited for it
  std::chrono::nanoseconds per_step{};  ///< of that time
  std::chrono::nanoseconds window{};    ///< in which that was
  PhaseIndex phase = kTrainingPhase;    ///< in which it lost most of that time
  double phase_share = 0;               ///< how much of it
  bool operator==(const SlowRank&) const = default;
};

/// The arrivals of a rank.
struct RankArrivals {
  int rank = 0;
  std::uint64_t last = 0;             ///< decisions to which it came last
  std::chrono::nanoseconds median{};  ///< how late it was then
  std::chrono::nanoseconds p99{};
  PhaseIndex phase = kTrainingPhase;  ///< in which it has held up the others most
  bool operator==(const RankArrivals&) const = default;
};

/// The root's ledger of one process set's collectives that have an id. A *step* ends where an id
/// comes again. A rank *holds up* a step by its greatest lateness in it, lost in the phases in
/// which that has grown: what is late together costs nothing more. Pure; does not allocate after
/// construction. Thread rule: one thread at a time.
class ArrivalLedger {
 public:
  /// A window ends when it has both: collectives of one step are late together, so that steps are
  /// what counts against chance. Of two equal ranks one is last in more than kLastShare of 50 steps
  /// once in 178,000 windows (the binomial distribution's tails), of 25 once in 1,100.
  static constexpr int kSteps = 50;
  static constexpr std::chrono::seconds kWindow{10};
  /// A rank is slow that comes last to more than this share, and holds up more than that.
  static constexpr double kLastShare = 0.8;
  static constexpr double kHeldUpShare = 0.05;

  /// `ranks`: world ranks of the set, ascending.
  ArrivalLedger(std::vector<int> ranks, int id_capacity);

  /// Ids of this slot (Id) belong to a collective of this name from here on.
  void assign(std::size_t slot, std::string_view name) {
    if (slot < phases_of_.size()) phases_of_[slot] = phase_of(name);
  }
  /// An id of this slot is decided. Where that ends a window with a slow rank: which, at growing
  /// intervals for each rank. Ignores ranks that are not of the set.
  std::optional<SlowRank> add(std::size_t slot, const LastArrival& last);

  std::uint64_t decisions() const {
    return std::accumulate(decisions_of_.begin(), decisions_of_.end(), std::uint64_t{0});
  }
  std::uint64_t decisions(PhaseIndex phase) const { return decisions_of_[phase]; }
  /// That have begun.
  std::uint64_t steps() const { return decisions() == 0 ? 0 : step_; }
  const std::vector<int>& ranks() const { return ranks_; }
  /// How late this rank of the set was where it came last, in a phase and in all.
  const LatenessHistogram& lateness_of(int rank, PhaseIndex phase) const {
    return rows_[index_of(rank)].lateness[phase];
  }
  LatenessHistogram lateness_of(int rank) const {
    LatenessHistogram all;
    for (const LatenessHistogram& lateness : rows_[index_of(rank)].lateness) all.add(lateness);
    return all;
  }
  /// Fills `ranks` with those that came last most often, these first; how many that are.
  std::size_t most_often_last(std::span<RankArrivals> ranks) const;

 private:
  using Times = std::array<std::chrono::nanoseconds, kStepPhases>;
  struct Row {
    std::array<LatenessHistogram, kStepPhases> lateness;
    Times held_up{};                      ///< by phase
    std::chrono::nanoseconds greatest{};  ///< lateness in `step`
    std::uint32_t step = 0;
    // Within the window:
    std::uint32_t last = 0;
    Times held_up_before{};
    // Warnings: windows to be slow in until the next, and how many that were last time.
    std::uint32_t quiet = 0;
    std::uint32_t interval = 1;
  };
  /// In `ranks_`; its length for another rank.
  std::size_t index_of(int rank) const {
    const auto found = std::ranges::lower_bound(ranks_, rank);
    const bool is_member = found != ranks_.end() && *found == rank;
    return static_cast<std::size_t>((is_member ? found : ranks_.end()) - ranks_.begin());
  }
  /// The phase with the longest time; what that is.
  static std::pair<PhaseIndex, std::chrono::nanoseconds> longest(const Times& times) {
    const auto most = std::max_element(times.begin(), times.end());
    return {static_cast<PhaseIndex>(most - times.begin()), *most};
  }
  std::optional<SlowRank> end_window(std::chrono::nanoseconds time);

  std::vector<int> ranks_;
  std::vector<Row> rows_;                ///< by index in `ranks_`
  std::vector<std::uint32_t> steps_of_;  ///< by slot: the last step in which it was
  std::vector<PhaseIndex> phases_of_;    ///< by slot
  std::uint32_t step_ = 1;
  std::array<std::uint64_t, kStepPhases> decisions_of_{};
  // Within the window:
  std::chrono::nanoseconds begin_{};
  std::uint32_t window_step_ = 1;
  std::uint32_t window_decisions_ = 0;
};

/// Two sentences: the rank, its host, how late it is, in which phase, the cost, what to look at.
std::string slow_rank_text(const SlowRank& slow, std::span<const ProcessIdentity> processes);

/// The final report's table: a line a rank, most often last first, below it one a phase if several.
std::string arrivals_text(const ArrivalLedger& ledger, std::span<const ProcessIdentity> processes);

}  // namespace hora::internal
