/// The wrapped optimizer on this rank's share of the parameters (Sharding::state).
#pragma once

#include <hora/hora.h>
#include <hora/torch/collectives.h>
#include <torch/optim/optimizer.h>

#include <optional>
#include <vector>

#include "frameworks/torch/optimizer/round.h"

namespace hora::internal {

/// A part of this rank's slice of a bucket.
struct ShardedPiece {
  std::size_t bucket = 0;
  ShardPiece where;
  at::Tensor values;  ///< view of the parameter
};

/// Thread rule: one thread at a time.
class OptimizerShards {
 public:
  /// Puts views of this rank's pieces in the place of the parameters in the optimizer's groups.
  /// References outlive it. Throws, on every rank alike, Error(invalid_argument) for memory that is
  /// not dense or shared by two, and Error(invalid_use) for an optimizer that has stepped.
  OptimizerShards(const Peers& peers, const Round& round, torch::optim::Optimizer& optimizer);
  /// The optimizer's groups hold the parameters again, without state.
  ~OptimizerShards();
  OptimizerShards(const OptimizerShards&) = delete;
  OptimizerShards& operator=(const OptimizerShards&) = delete;

  /// Before the optimizer steps: where the program has put other memory under parameters, the
  /// pieces view it. Throws Error(invalid_argument) naming one that cannot be cut alike.
  void follow_parameters();
  /// Gradients have been averaged: those of this rank's pieces become their `.grad`.
  void take_gradients();
  /// They have not: no piece has a `.grad`.
  void drop_gradients();
  const std::vector<ShardedPiece>& own_pieces() const { return pieces_; }
  /// That are defined.
  std::vector<at::Tensor> gradients() const;
  /// The tensors that the optimizer steps on this rank.
  std::vector<OptimizerPiece> pieces() const;
  /// The optimizer has stepped: sends this rank's pieces to all, once the last ones have arrived.
  /// Collective.
  void begin_gather();
  /// Waits: every parameter has the pieces of all ranks then, but one that has got other memory
  /// meanwhile. Throws Error(invalid_use) where the program has written to a parameter.
  void end_gather();

 private:
  /// The memory of a parameter, which stays allocated: no other can get its address.
  struct Memory {
    c10::Storage storage;
    const void* address = nullptr;
    std::int64_t version = 0;

    bool lies_as(const Memory& other) const {
      return address == other.address &&
             storage.unsafeGetStorageImpl() == other.storage.unsafeGetStorageImpl();
    }
  };
  struct BucketSlice {
    at::Tensor values;  ///< room for those of this rank's pieces, to be sent
    std::optional<TensorHandle> gather;
  };

  void replace_parameters();
  static Memory memory_of(const at::Tensor& parameter);
  /// Returns a parameter that the program has written to meanwhile; null: none.
  const Parameter* copy_to_parameters(std::size_t bucket, const at::Tensor& all) const;

  const Peers peers_;
  const Round& round_;
  torch::optim::Optimizer& optimizer_;
  std::vector<std::vector<at::Tensor>> whole_;  ///< by group, what it held
  const std::vector<ParameterForm> forms_;
  std::vector<Memory> memories_;  ///< by parameter, when the gather has begun
  std::vector<ShardedPiece> pieces_;
  std::vector<BucketSlice> slices_;  ///< by bucket
};

}  // namespace hora::internal
