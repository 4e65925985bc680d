/// The wrapped optimizer on this rank's share of the parameters (DistributedOptimizerOptions::
/// shard_state).
#pragma once

#include <hora/hora.h>
#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

#include "frameworks/torch/gradient_averager.h"
#include "frameworks/torch/shard_pieces.h"

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
  /// The optimizer has stepped: every parameter gets the pieces of all ranks. Collective.
  void gather();

 private:
  struct Piece {
    ShardPiece where;
    at::Tensor values;  ///< view of the parameter
  };
  struct Bucket {
    std::vector<Piece> pieces;
    at::Tensor slice;  ///< room for my pieces' values, to be sent
  };

  void replace_parameters(torch::optim::Optimizer& optimizer) const;
  void spread(std::size_t bucket, const at::Tensor& all) const;

  const Peers peers_;
  const GradientAverager& averager_;
  std::vector<Bucket> buckets_;
};

}  // namespace hora
