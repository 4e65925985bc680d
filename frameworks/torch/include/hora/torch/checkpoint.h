/// Checkpoints of a training: written in the background, resumed by any number of ranks.
///
///     hora::DistributedOptimizer optimizer(world, sgd, model->named_parameters());
///     hora::broadcast_parameters(world, *model);
///     hora::Checkpoint checkpoint(world, {.folder = "models"});
///     checkpoint.add_weights(*model);
///     checkpoint.add_optimizer("optimizer", optimizer);
///     checkpoint.add_random_state();
///     std::int64_t step = checkpoint.load().value_or(hora::CheckpointPosition{}).step;
///     while (step < steps) {
///       train_one_step(optimizer);
///       if (++step % 1000 == 0) checkpoint.save({.step = step});   // goes on while it is written
///     }
///     checkpoint.wait();
#pragma once

#include <hora/context.h>
#include <hora/export.h>
#include <hora/torch/distributed_optimizer.h>
#include <hora/torch/grad_scaler.h>
#include <hora/torch/gradient_hook.h>
#include <hora/torch/safetensors.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>
#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace HORA_EXPORT hora {

struct CheckpointOptions {
  /// Made where it is missing, with those above it. Below it: `last`, `previous` and `best`. One
  /// Checkpoint at a time writes into it.
  std::string folder = {};
  /// False: rank 0 writes. True: local rank 0 of each node writes all of it into the folder on its
  /// node, for nodes without a shared file system of which some may be lost.
  bool per_node = false;
  /// False: save() returns when all is on the disk.
  bool background = true;
  /// So long ranks wait for one that reads files, or has not written the save before; then
  /// Error(timeout), as of collectives.h. Above 0.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// Where a training is.
struct CheckpointPosition {
  std::int64_t step = 0;   ///< steps made, >= 0
  std::int64_t epoch = 0;  ///< as the program counts, >= 0
  bool operator==(const CheckpointPosition&) const = default;
};

/// Whose an added part is, and where it goes.
enum class CheckpointScope {
  shared,     ///< equal on all ranks: rank 0's is saved, and loaded by all
  each_rank,  ///< each rank's own, small: what all have is written into one file
  shard,      ///< each rank's own, large: the rank itself writes it, but with per_node
};

struct CheckpointSaveOptions {
  bool best = false;  ///< it becomes `best` as well, until the next that is
};

struct CheckpointLoadOptions {
  /// Empty: that of CheckpointOptions.
  std::string folder = {};
  /// Only what lies in this one: "last", "previous" or "best". Empty: whichever is the newest.
  std::string slot = {};
  /// Parts that the checkpoint lacks stay as they are, with a warning; false: they are an error.
  bool allow_missing_parts = false;
};

/// Saves what has been added to it, and loads it.
///
/// **Files.** `last`, `previous` and `best` each hold `weights.safetensors` (the module's
/// parameters and buffers by their names, as torchvision's and PyTorch's: safetensors.h),
/// `state.safetensors` (all other parts, as "<part>/<entry>", a rank's own as
/// "ranks/<rank>/<part>/<entry>") and `manifest.json` (position, layout of the ranks, sizes and
/// checksums (XXH3, 128 bits) of the files, and of itself). Shards, such as the state of a
/// DistributedOptimizer with sharding, lie in `rank-<rank>/last` and so on, each written by its
/// rank. Files 0600, folders 0700.
///
/// **What is promised.** A save goes into a folder of its own, with fsync of each file and of the
/// folder, and is renamed then: whenever a process is killed, a machine loses power, or the disk is
/// full, the last save that was completed is there. load() checks every byte before it changes
/// anything: what is damaged is refused, with a warning that names the file, and the newest
/// complete save that remains is taken. A save is complete where each of its parts is on some rank:
/// a node that lacks it, or has an older one, gets it from a rank that has it. So at resume no file
/// system needs to be shared, and no rank needs to be where it was.
///
/// A training on CPUs that is resumed by the same number of ranks, on nodes as before, has the same
/// bits as one that never stopped, where all that it depends on has been added.
///
/// **Another number of ranks.** Shared parts and the state of optimizers, sharded or not, are those
/// of the training. Of each_rank and shard parts each rank gets what the rank of its number has
/// saved; ranks beyond keep what they have (random state).
///
/// **Cost.** save() copies tensors to host memory that is kept for the next save, exchanges a
/// message and returns. Another thread computes checksums and writes. Memory: a copy of what this
/// rank writes. load() holds all of the checkpoint in host memory on each rank.
///
/// Collective: construct, add the same parts in the same order, save(), load() and wait() on every
/// rank of the world. Parts, and what they were given, must outlive it and stay where they are.
/// Thread rule: one thread at a time; the functions given to add_state() and add_text() are called
/// by save() and load() in their thread.
///
/// Errors: Error(invalid_argument), the same on every rank where it concerns a file or a part,
/// naming rank, path and what the system says.
class Checkpoint {
 public:
  using Tensors = torch::OrderedDict<std::string, torch::Tensor>;

  Checkpoint(const Context& context, const CheckpointOptions& options);
  /// Waits for what is being written; where that fails it logs a warning. Call wait() before, to
  /// learn of it on every rank.
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  // What is saved, before the first save() or load(). `name`: of a part, without '/'; each once.

  /// One module. Buffers are rank 0's.
  void add_weights(torch::nn::Module& module);
  /// State and options (learning rates, ...) of the wrapped optimizer, by the names of parameters.
  /// It may be one of LibTorch's, or another that uses their state classes.
  void add_optimizer(const std::string& name, DistributedOptimizer& optimizer);
  /// The same for an optimizer that is not wrapped, and equal on all ranks.
  void add_optimizer(const std::string& name, torch::optim::Optimizer& optimizer,
                     const Tensors& named_parameters);
  void add_scaler(const std::string& name, GradScaler& scaler);
  /// What a hook remembers, such as PowerSgd's errors. It begins anew by another number of ranks.
  /// Not with static_graph: its first step after load() has other buckets than those before.
  void add_hook(const std::string& name, GradientHook& hook);
  /// LibTorch's default generators of this rank, on the CPU and on its GPU.
  void add_random_state();
  /// Tensors such as averaged weights (EMA): copied into at load(), with equal shapes.
  void add_tensors(const std::string& name, const Tensors& tensors,
                   CheckpointScope scope = CheckpointScope::shared);
  void add_number(const std::string& name, std::int64_t& number,
                  CheckpointScope scope = CheckpointScope::shared);
  void add_number(const std::string& name, double& number,
                  CheckpointScope scope = CheckpointScope::shared);
  /// Any value as text, such as JSON: a schedule, a sampler's position.
  void add_text(const std::string& name, const std::function<std::string()>& save,
                const std::function<void(const std::string&)>& load,
                CheckpointScope scope = CheckpointScope::shared);
  /// Anything that can be expressed in tensors. `load` must copy what it keeps.
  void add_state(const std::string& name, const std::function<Tensors()>& save,
                 const std::function<void(const Tensors&)>& load,
                 CheckpointScope scope = CheckpointScope::shared);

  /// Copies everything, then writes it in the background; between two steps of all optimizers, not
  /// between backward() and step(), which is an error for a DistributedOptimizer.
  /// Waits for the save before; where that has failed on any rank it throws its error on every
  /// rank, and saves nothing: the next call does.
  void save(const CheckpointPosition& position, const CheckpointSaveOptions& options = {});

  /// Loads the newest complete checkpoint, and gives its position; nothing where there is none at
  /// all. Throws where there are some, but none that is complete and undamaged.
  std::optional<CheckpointPosition> load(const CheckpointLoadOptions& options = {});

  /// Returns when the last save is on the disk on every rank; throws as save().
  void wait();

 private:
  struct HORA_HIDDEN State;
  std::unique_ptr<State> state_;
};

}  // namespace hora
