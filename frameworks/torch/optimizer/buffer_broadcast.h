/// A module's buffers, made the first rank's in one piece.
#pragma once

#include <ATen/core/Tensor.h>
#include <hora/hora.h>

#include <cstddef>
#include <string>
#include <vector>

#include "frameworks/torch/peers.h"

namespace hora {

/// Thread rule: one thread at a time.
class BufferBroadcast {
 public:
  /// Dense tensors on one device, which must be the same on all ranks. `name`: of the collective.
  BufferBroadcast(const Peers& peers, std::string name, std::vector<at::Tensor> buffers);

  /// Takes their values now.
  void begin();
  /// Waits; they are the first rank's values then.
  void end();

 private:
  const Peers peers_;
  const std::string name_;
  const std::vector<at::Tensor> buffers_;
  Buffer memory_;
  std::vector<at::Tensor> copies_;  ///< in memory_
  Handle handle_;                   // after memory_: goes first
};

}  // namespace hora
