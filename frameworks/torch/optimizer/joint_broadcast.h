/// Several tensors, broadcast from one rank in one piece.
///
/// State that a wrapped optimizer has before its first step, cut as its parameters are.
#pragma once

#include <ATen/core/Tensor.h>
#include <hora/hora.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "frameworks/torch/optimizer/parameter_form.h"
#include "frameworks/torch/peers.h"

namespace hora {

/// Thread rule: one thread at a time.
class JointBroadcast {
 public:
  /// Dense tensors on one device, which must be the same on all ranks. They may get other memory
  /// later, of the same form. `name`: of the collective.
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

/// Consecutive elements of a parameter, which the optimizer steps in its place.
struct ParameterPiece {
  std::int64_t begin = 0;  ///< element of the parameter, in its memory order
  at::Tensor values;
};

/// False where the optimizer has stepped, and where it keeps state that hora does not know: only
/// Adagrad has any before its first step.
bool can_cut_state(const torch::optim::Optimizer& optimizer);

/// The state of `parameter`, where it has any, becomes that of its pieces.
void cut_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
               const std::vector<ParameterPiece>& pieces);

}  // namespace hora
