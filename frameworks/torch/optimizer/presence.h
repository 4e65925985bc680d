/// Which gradients any rank has, told over the host: reading it from a GPU would wait for the GPU.
#pragma once

#include <hora/hora.h>

#include <cstdint>
#include <string>
#include <vector>

#include "frameworks/torch/peers.h"

namespace hora {

/// One exchange a round, on every rank. A rank that has all its gradients does not wait for it.
/// Thread rule: one thread at a time.
class PresenceExchange {
 public:
  /// `name`: of the collective.
  PresenceExchange(const Peers& peers, std::string name, std::size_t gradients);

  /// This rank has no gradient `index` in this round.
  void note_absent(std::size_t index) { present_[index] = 0; }
  /// Every gradient has been noted.
  void begin();
  /// Whether any rank has gradient `index`. Waits for the exchange where this rank has not got it.
  bool anywhere(std::size_t index);
  /// The next round begins.
  void end();

 private:
  const Peers peers_;
  std::string name_;
  std::vector<std::int32_t> present_;  ///< mine
  std::vector<std::int32_t> counts_;   ///< over all ranks, once waited for
  Handle handle_;
};

}  // namespace hora
