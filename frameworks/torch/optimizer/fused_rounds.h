/// Whether a round's sharded gradients are averaged by the pass that updates (fused_update.h), or
/// by reduce-scatter: ranks agree, for one alone may want the averages before the step.
#pragma once

#include <hora/hora.h>

#include <cstdint>
#include <string>

#include "frameworks/torch/peers.h"

namespace hora::internal {

/// One exchange a round, on every rank, over the host. Thread rule: one thread at a time.
class FusedRounds {
 public:
  /// `name`: of the collective.
  FusedRounds(const Peers& peers, std::string name);

  /// Once a round. Collective, does not wait.
  void answer(bool updates);
  /// agree() would not block.
  bool ready() const { return handle_.ready(); }
  /// After answer(): waits for the others' answers, unless this rank's was no.
  void agree();
  /// After agree(), until the next answer(): every rank has answered yes.
  bool updates() const { return updates_; }
  const std::string& name() const { return name_; }

 private:
  const Peers peers_;
  const std::string name_;
  std::int32_t ranks_ = 0;  ///< that have answered yes
  bool answer_ = false;
  bool updates_ = false;
  Handle handle_;
};

}  // namespace hora::internal
