/// Which gradients any rank has, and whether all are in one step, exchanged over the host: reading
/// it from a GPU would wait for the GPU.
#pragma once

#include <hora/hora.h>

#include <cstdint>
#include <string>
#include <vector>

#include "frameworks/torch/peers.h"

namespace hora {

/// One exchange a round, on every rank. Thread rule: one thread at a time.
class PresenceExchange {
 public:
  /// `name`: of the collective.
  PresenceExchange(const Peers& peers, std::string name, std::size_t gradients);

  /// This rank has no gradient `index` in this round.
  void note_absent(std::size_t index) { present_[index] = 0; }
  /// Every gradient has been noted. `step_lane`: see step_calls.h.
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

}  // namespace hora
