/// Whether all ranks use a round's averages alike.
#pragma once

#include <hora/hora.h>

#include <array>
#include <cstdint>
#include <string>

#include "frameworks/torch/peers.h"

namespace hora {

/// How a rank uses averages.
enum class RoundEnd { undecided, step, discard };

/// One exchange a round, on every rank, over the host. Thread rule: one thread at a time.
class RoundEndExchange {
 public:
  /// `name`: of the collective.
  RoundEndExchange(const Peers& peers, std::string name);

  /// Sends this rank's, once a round: `end` is not undecided. Collective, does not wait.
  void tell(RoundEnd end);
  /// Every rank has sent its end, or this one has not.
  bool ready() const { return handle_.ready(); }
  /// After tell(): waits for the others. Whether all ends are the same. The next round begins.
  bool agree();

 private:
  const Peers peers_;
  const std::string name_;
  std::array<std::int32_t, 2> counts_{};  ///< of ranks that step, that discard
  bool told_ = false;
  Handle handle_;
};

}  // namespace hora
