/// Counts of a rank: passes, of which one completes a gradient, and calls, which say in which step
/// it is and are sent to the others with its gradients. Pure.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hora::internal {

/// Which backward pass completes a gradient. Thread rule: one thread at a time.
class PassCounter {
 public:
  PassCounter(std::size_t gradients, int passes) : counts_(gradients, 0), passes_(passes) {}

  /// How many passes make a gradient complete, at least 1.
  void require(int passes) { passes_ = passes; }
  int required() const { return passes_; }

  /// A pass has added to the gradient: true where it was the last one it takes. One that is not
  /// counted (no_sync) never is.
  bool add(std::size_t gradient, bool counted) {
    any_ = true;
    if (!counted) return false;
    counts_[gradient] += 1;
    return counts_[gradient] == passes_;
  }
  /// Any pass since the last reset.
  bool any() const { return any_; }
  void reset() {
    counts_.assign(counts_.size(), 0);
    any_ = false;
  }

 private:
  std::vector<int> counts_;
  int passes_;
  bool any_ = false;
};

/// How often a rank has called step() and zero_grad().
struct StepCalls {
  std::int64_t steps = 0;
  std::int64_t zero_grads = 0;
  auto operator<=>(const StepCalls&) const = default;
};

/// Ranks that are in one step have called the same since their last round of averaging. Each sets
/// one of so many lanes, which says what it has called; where the sum over ranks has two lanes set,
/// ranks are in different steps.
inline constexpr std::size_t step_lanes = 8;

/// Thread rule: one thread at a time.
class StepCounter {
 public:
  void note_step() { calls_.steps += 1; }
  void note_zero_grad() { calls_.zero_grads += 1; }
  /// A round begins.
  void begin_round();
  /// The round's: the same on ranks that have called the same since the round before. More than one
  /// step() counts as one, more than three zero_grad() as three.
  std::size_t lane() const { return lane_; }
  /// Since the begin.
  const StepCalls& calls() const { return calls_; }
  /// Likewise, before the round.
  const StepCalls& calls_before() const { return before_; }
  /// Another begin, the same on all ranks.
  void restart();

 private:
  StepCalls calls_;
  StepCalls before_;
  std::size_t lane_ = 0;
};

/// Returns an error's text: which ranks are in which step, and what to do. World ranks, ascending.
/// `updated`: some parameters may hold this step's update already, on all ranks alike.
std::string different_steps_text(const std::map<StepCalls, std::vector<int>>& ranks, bool updated);

}  // namespace hora::internal
