/// The wrapped optimizer on this rank's share of the parameters (Sharding::state), and its step
/// taken by the pass that averages (Sharding::fused): each rank reads all ranks' gradients of its
/// slice, updates parameters and state by the averages, and writes the parameters to all ranks.
#pragma once

#include <memory>
#include <unordered_map>

#include "frameworks/torch/optimizer/round.h"
#include "ops/local/kernels.h"

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
  /// References outlive it. Throws an Error, on every rank alike, for memory that is not dense or
  /// shared by two, and for an optimizer that has stepped.
  OptimizerShards(const Peers& peers, const Round& round, torch::optim::Optimizer& optimizer);
  /// The optimizer's groups hold the parameters again, without state.
  ~OptimizerShards();
  OptimizerShards(const OptimizerShards&) = delete;
  OptimizerShards& operator=(const OptimizerShards&) = delete;

  /// Where the program has put other memory under parameters, the pieces view it. Throws
  /// Error(invalid_argument) naming one that cannot be cut alike.
  void follow_parameters();
  /// After a round: this rank's pieces of the averages become their `.grad`; none has one where the
  /// pass that averages is to step.
  void take_gradients();
  const std::vector<ShardedPiece>& own_pieces() const { return pieces_; }
  /// The tensors that the optimizer steps on this rank.
  std::vector<OptimizerPiece> pieces() const;
  /// After a step: sends this rank's pieces to all, once the last ones have arrived. Collective.
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
  };
  struct BucketSlice {
    at::Tensor values;  ///< room for those of this rank's pieces, to be sent
    TensorHandle gather;
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

/// SGD, Adam or AdamW.
bool is_of_hora_optim(const torch::optim::Optimizer& optimizer);

/// Whether ranks can: an optimizer of hora::optim, whose parameters are of float32 or float64 on
/// the CPU, each the only tensor in its memory, among ranks of one node.
bool can_fuse_update(const Peers& peers, const torch::optim::Optimizer& optimizer,
                     const std::vector<Parameter>& parameters);

/// The parameters' memory becomes memory that the node's ranks share, laid out as the buckets are.
/// With Sharding::in_backward it works in the hooks of backward, bucket by bucket, and never waits:
/// what is not ready is left to a later hook, in the end to run(). Counters in shared memory say
/// how far the ranks are. Thread rule: one thread at a time.
class FusedUpdate {
 public:
  /// Collective. References outlive it.
  FusedUpdate(const Peers& peers, Round& round, OptimizerShards& shards,
              torch::optim::Optimizer& optimizer, const BucketOptions& averaging, bool in_backward);
  /// Between begin() and end(), as while an exception unwinds the stack, peers' writes may be under
  /// way: their memory stays.
  ~FusedUpdate();
  FusedUpdate(const FusedUpdate&) = delete;
  FusedUpdate& operator=(const FusedUpdate&) = delete;

  bool can_run() const;
  /// Whether every parameter still lies in shared memory.
  bool parameters_hold() const;
  /// In backward, before Round::announce(): peers may write to the parameters of submitted buckets
  /// from now on, until end().
  void begin();
  /// After both, in the hook behind each complete gradient.
  void proceed();
  /// Where Round::updates(): updates the buckets that are left. Collective: no rank accesses
  /// another's memory any more when it returns.
  void run();
  /// At the end of each step, on every rank: none writes to another's parameters, nor will for it.
  void end();

 private:
  enum class Stage { filling, given, updated, released };
  struct Piece {
    ShardedPiece own;                    ///< stepped by this rank
    std::size_t begin = 0;               ///< bytes from the parameter's first one
    std::vector<std::byte*> parameters;  ///< of its first element, in the other ranks' memory
  };

  /// Puts the bucket's parameters into the next block of memory.
  void move_parameters(const Bucket& bucket);
  void update(std::size_t bucket);
  /// Where each rank has the piece's gradients, by rank in the set: in the bucket, or where
  /// autograd has put them. Throws as peer_address().
  std::vector<const std::byte*> gradients_of(const Piece& piece) const;
  /// This rank has updated its part of the bucket once more: releases what it has written for that.
  void count(std::size_t bucket);
  /// Whether all ranks have counted as often as this one: acquires what they have written.
  bool counted_by_all(std::size_t bucket) const;

  const Peers peers_;
  Round& round_;
  torch::optim::Optimizer& optimizer_;
  const Scales scales_;
  const std::vector<int> members_;                  ///< world ranks
  std::vector<std::shared_ptr<Buffer>> blocks_;     ///< by bucket, memory of its parameters
  std::vector<const void*> addresses_;              ///< by parameter
  std::vector<std::vector<std::byte*>> gradients_;  ///< buckets, by bucket and rank in the set
  std::unordered_map<const void*, Piece> pieces_;   ///< by the tensor in the optimizer's groups
  Buffer counts_;                                   ///< in backward; a counter a bucket
  std::vector<std::uint64_t*> counters_;            ///< by rank in the set
  std::vector<Stage> stages_;                       ///< by bucket, in this round
  bool running_ = false;
};

}  // namespace hora::internal
