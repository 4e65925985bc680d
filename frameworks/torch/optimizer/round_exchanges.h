/// Exchanges once a round beside its gradients: which gradients exist, the step of each rank, and
/// how the round ends. Over the host: reading them from a GPU would wait for the GPU.
#pragma once

#include <hora/hora.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "frameworks/torch/optimizer/step_counters.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// One exchange a round, on every rank. Thread rule: one thread at a time.
class PresenceExchange {
 public:
  /// `name`: of the collective.
  PresenceExchange(const Peers& peers, std::string name, std::size_t gradients);

  /// This rank has no gradient `index` in this round.
  void note_absent(std::size_t index) { present_[index] = 0; }
  /// Every gradient has been noted. `step_lane`: see step_counters.h.
  void begin(std::size_t step_lane);
  /// wait() would not block.
  bool ready() const { return handle_.ready(); }
  /// Waits until every rank's host has begun, never for a device. Throws the exchange's error.
  void wait();
  /// After wait(): whether any rank has gradient `index`.
  bool anywhere(std::size_t index) const { return counts_[index] != 0; }
  /// After wait(): whether all ranks have set one step lane.
  bool in_one_step() const;
  /// The next round begins.
  void end();

 private:
  const Peers peers_;
  std::string name_;
  std::vector<std::int32_t> present_;  ///< this rank's
  std::vector<std::int32_t> counts_;   ///< over all ranks; the step lanes after the gradients
  Handle handle_;
};

/// Sent by a rank; one that has joined sends nothing, and is all zeros.
struct RankSteps {
  std::int64_t reported = 0;
  std::int64_t rank = 0;
  std::int64_t steps = 0;
  std::int64_t zero_grads = 0;
};

/// Once. Thread rule: one thread at a time.
class StepsExchange {
 public:
  /// `name`: the optimizer's.
  StepsExchange(const Peers& peers, std::string name);

  /// Collective, does not wait.
  void send(const StepCalls& calls);
  /// After send(): waits. Gives the same Error(mismatch) on every rank, which names all ranks and
  /// their steps. `updated`: see different_steps_text().
  Error error(bool updated);

 private:
  const Peers peers_;
  const std::string name_;
  std::vector<RankSteps> all_;  ///< by rank in the set
  Handle handle_;
};

/// How a rank uses averages.
enum class RoundEnd { undecided, step, discard };

/// One exchange a round, on every rank, over the host. Thread rule: one thread at a time.
class RoundEndExchange {
 public:
  /// `name`: of the collective.
  RoundEndExchange(const Peers& peers, std::string name);

  /// Sends this rank's, once a round: `end` is not undecided. Collective, does not wait.
  void send(RoundEnd end);
  /// Every rank has sent its end, or this one has not.
  bool ready() const { return handle_.ready(); }
  /// After send(): waits for the others. Whether all ends are the same. The next round begins.
  bool agree();

 private:
  const Peers peers_;
  const std::string name_;
  std::array<std::int32_t, 2> counts_{};  ///< of ranks that step, that discard
  bool sent_ = false;
  Handle handle_;
};

}  // namespace hora::internal
