/// The wrapped optimizer on this rank's share of the parameters (DistributedOptimizerOptions::
/// shard_state).
#pragma once

#include <hora/hora.h>
#include <hora/torch_collectives.h>
#include <torch/optim/optimizer.h>

#include <optional>
#include <vector>

#include "frameworks/torch/optimizer/gradient_averager.h"
#include "frameworks/torch/optimizer/shard_pieces.h"

namespace hora {

/// Thread rule: one thread at a time.
class OptimizerShards {
 public:
  /// Puts views of this rank's pieces in the place of the parameters in the optimizer's groups.
  /// All references must outlive it. Throws Error(invalid_argument) for parameters whose memory is
  /// not dense, and Error(invalid_use) for an optimizer that has stepped.
  OptimizerShards(const Peers& peers, const GradientAverager& averager,
                  torch::optim::Optimizer& optimizer);

  /// Gradients have been averaged: those of my pieces become their `.grad`.
  void take_gradients();
  /// That are defined.
  std::vector<at::Tensor> gradients() const;
  /// The optimizer has stepped: sends my pieces to all ranks, once the last ones have come.
  /// Collective.
  void begin_gather();
  /// Waits: every parameter has the pieces of all ranks then.
  void end_gather();

 private:
  struct Piece {
    ShardPiece where;
    at::Tensor values;  ///< view of the parameter
  };
  struct Bucket {
    std::vector<Piece> pieces;
    at::Tensor slice;  ///< room for my pieces' values, to be sent
    std::optional<TensorHandle> gather;
  };

  void replace_parameters(torch::optim::Optimizer& optimizer) const;
  void spread(std::size_t bucket, const at::Tensor& all) const;

  const Peers peers_;
  const GradientAverager& averager_;
  std::vector<Bucket> buckets_;
};

}  // namespace hora
