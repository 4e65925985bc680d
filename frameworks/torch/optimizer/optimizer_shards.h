/// The wrapped optimizer on this rank's share of the parameters (Sharding::state).
#pragma once

#include <hora/hora.h>
#include <hora/torch/collectives.h>
#include <torch/optim/optimizer.h>

#include <optional>
#include <vector>

#include "frameworks/torch/optimizer/bucket_layout.h"
#include "frameworks/torch/optimizer/gradient_averager.h"
#include "frameworks/torch/optimizer/optimizer_piece.h"

namespace hora::internal {

/// Throws Error(invalid_argument) for parameters whose memory is not dense or shared by two, on
/// every rank alike.
void check_can_cut(const std::vector<Parameter>& parameters);
/// Throws Error(invalid_use) where the optimizer has state that cannot be cut.
void check_can_cut_state(const Peers& peers, const torch::optim::Optimizer& optimizer);

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
  /// All references must outlive it. Throws Error(invalid_argument) for parameters whose memory is
  /// not dense or shared by two, and Error(invalid_use) for an optimizer that has stepped.
  OptimizerShards(const Peers& peers, const GradientAverager& averager,
                  torch::optim::Optimizer& optimizer);
  /// The optimizer's groups hold the parameters again, without state.
  ~OptimizerShards();
  OptimizerShards(const OptimizerShards&) = delete;
  OptimizerShards& operator=(const OptimizerShards&) = delete;

  /// The program may have put other memory under parameters: the pieces view it from now on. Before
  /// the optimizer steps. Throws Error(invalid_argument) naming the parameter where it cannot be
  /// cut alike.
  void follow_parameters();
  /// Gradients have been averaged: those of this rank's pieces become their `.grad`.
  void take_gradients();
  /// They have not: no piece has a `.grad`.
  void drop_gradients();
  std::vector<ShardedPiece> own_pieces() const;
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
  struct ParameterShare {
    ShardPiece where;
    at::Tensor values;  ///< view of the parameter
  };
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
  struct BucketShare {
    std::vector<ParameterShare> pieces;
    at::Tensor slice;  ///< room for the values of this rank's pieces, to be sent
    std::optional<TensorHandle> gather;
  };

  void replace_parameters();
  static Memory memory_of(const at::Tensor& parameter);
  void note_memory();
  /// Returns a parameter that the program has written to meanwhile; null: none.
  const Parameter* copy_to_parameters(std::size_t bucket, const at::Tensor& all) const;

  const Peers peers_;
  const GradientAverager& averager_;
  torch::optim::Optimizer& optimizer_;
  std::vector<std::vector<at::Tensor>> whole_;  ///< by group, what it held
  const std::vector<ParameterForm> forms_;
  std::vector<Memory> memories_;  ///< by parameter, when hora has checked last
  std::vector<BucketShare> buckets_;
};

}  // namespace hora::internal
