/// Several tensors, broadcast from one rank in one piece.
#pragma once

#include <ATen/core/Tensor.h>
#include <hora/hora.h>

#include <cstddef>
#include <string>
#include <vector>

#include "frameworks/torch/optimizer/parameter_form.h"
#include "frameworks/torch/peers.h"

namespace hora::internal {

/// Thread rule: one thread at a time.
class JointBroadcast {
 public:
  /// Dense tensors, the same on all ranks. They may get other memory later, of the same form.
  /// `name`: of the collective.
  JointBroadcast(const Peers& peers, std::string name, std::vector<at::Tensor> tensors);

  /// Takes the values of `root`, a world rank, now. Without end() since the last one, their copies
  /// are dropped. Throws as ParameterForm::check(), naming a tensor by its place.
  void begin(int root);
  /// end() would not block.
  bool ready() const { return handle_.ready(); }
  /// Waits; they are the root's values then.
  void end();

 private:
  const Peers peers_;
  const std::string name_;
  const std::vector<at::Tensor> tensors_;
  std::vector<ParameterForm> forms_;
  Buffer memory_;
  std::vector<at::Tensor> copies_;  ///< in memory_
  bool is_root_ = false;
  Handle handle_;  // after memory_: destroyed first
};

}  // namespace hora::internal
