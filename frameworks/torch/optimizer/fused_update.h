/// The step of sharded optimizers of hora::optim, taken by the pass that averages: each rank reads
/// all ranks' gradients of its slice, updates its parameters and state by the averages, and writes
/// the parameters to all ranks. One pass in place of reduce-scatter, step and gather.
#pragma once

#include <hora/buffer.h>
#include <hora/hora.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "frameworks/torch/optimizer/gradient_averager.h"
#include "frameworks/torch/optimizer/optimizer_shards.h"
#include "frameworks/torch/optimizer/peer_gradients.h"
#include "frameworks/torch/peers.h"
#include "ops/local/kernels.h"

namespace hora::internal {

/// SGD, Adam or AdamW.
bool is_of_hora_optim(const torch::optim::Optimizer& optimizer);

/// Whether ranks can: an optimizer of hora::optim, whose parameters are of float32 or float64 on
/// the CPU, each the only tensor in its memory, among ranks of one node.
bool can_fuse_update(const Peers& peers, const torch::optim::Optimizer& optimizer,
                     const std::vector<Parameter>& parameters);

/// The parameters' memory becomes memory that the node's ranks share, laid out as the buckets are.
/// Thread rule: one thread at a time.
class ParameterWindows {
 public:
  /// Collective. References outlive it. The parameters are dense in memory, on the CPU.
  ParameterWindows(const Peers& peers, const GradientAverager& averager);

  /// Whether every parameter still lies there.
  bool hold() const;
  /// A bucket's addresses, by rank in the set.
  const std::vector<std::byte*>& addresses(std::size_t bucket) const {
    return blocks_[bucket].addresses;
  }
  /// Never frees the memory: peers may still write to it.
  void give_up() const noexcept;

 private:
  struct Block {
    std::shared_ptr<Buffer> memory;
    std::vector<std::byte*> addresses;
  };
  const GradientAverager& averager_;
  std::vector<Block> blocks_;        ///< by bucket
  std::vector<const void*> places_;  ///< by parameter
};

/// Thread rule: one thread at a time.
class FusedUpdate {
 public:
  /// Collective. References outlive it.
  FusedUpdate(const Peers& peers, const GradientAverager& averager, const OptimizerShards& shards,
              torch::optim::Optimizer& optimizer, const AveragingOptions& averaging,
              const ParameterWindows& windows);
  /// Between begin() and the end of run(), as while an exception unwinds the stack, peers' writes
  /// may be under way: their memory stays.
  ~FusedUpdate();
  FusedUpdate(const FusedUpdate&) = delete;
  FusedUpdate& operator=(const FusedUpdate&) = delete;

  /// Whether this rank could step now.
  bool can_run() const;
  bool parameters_hold() const { return windows_.hold(); }
  /// Peers may write to the parameters of submitted buckets from now on, until run() or end().
  void begin() { running_ = true; }
  /// This rank's part of one bucket, whose gradients are where peers find them and where present()
  /// holds for them (GradientAverager). Once a round.
  void run(std::size_t bucket);
  /// In this round.
  bool has_run(std::size_t bucket) const { return updated_[bucket]; }
  /// After a round that has left the gradients to it (GradientAverager::updates()), which all ranks
  /// are to step with: the buckets that have not been run. Collective: no rank accesses another's
  /// memory any more when it returns.
  void run();
  /// No rank writes to another's parameters, nor will for this round.
  void end();

 private:
  struct Piece {
    std::size_t parameter = 0;
    GradientPiece gradient;
    std::vector<std::byte*> parameters;  ///< of its first element, in the other ranks' memory
  };

  const Peers peers_;
  const std::string name_;
  const GradientAverager& averager_;
  torch::optim::Optimizer& optimizer_;
  const Scales scales_;
  const ParameterWindows& windows_;
  const PeerGradients gradients_;
  std::unordered_map<const void*, Piece> pieces_;  ///< by the tensor in the optimizer's groups
  std::vector<bool> updated_;                      ///< by bucket, in this round
  bool running_ = false;
};

}  // namespace hora::internal
