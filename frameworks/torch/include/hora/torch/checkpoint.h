/// Checkpoints of a training: written in the background, resumed by any number of ranks; and files
/// of weights.
///
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

#include <hora/torch/collectives.h>
#include <hora/torch/distributed_optimizer.h>
#include <hora/torch/grad_scaler.h>
#include <hora/torch/gradient_hook.h>

#include <functional>
#include <optional>
#include <string>

namespace HORA_EXPORT hora {

using NamedTensors = torch::OrderedDict<std::string, torch::Tensor>;

// Files of named tensors as Python's package safetensors has them
// (github.com/huggingface/safetensors); with torchvision's names they are weights for its models.
// Nothing in a file is run; lengths and offsets are checked. Errors: Error(invalid_argument) with
// path or tensor. Thread rule: any thread, as far as the tensors allow it.

/// In Python: `model.load_state_dict(safetensors.torch.load_file("resnet50.safetensors"))`.
///
///     hora::save_safetensors("resnet50.safetensors", hora::weights_of(*model));
///     hora::load_weights(*model, hora::load_safetensors("resnet50.safetensors"));
///
/// Writes a file of another name and renames it when it is on the disk: `path` is always whole; of
/// several ranks the last one's stays. Tensors on any device, of floating-point, integer or boolean
/// type.
void save_safetensors(const std::string& path, const NamedTensors& tensors);

/// Returns tensors on the CPU, in memory of their own.
NamedTensors load_safetensors(const std::string& path);

/// Returns parameters and buffers, not copied, by names as PyTorch's state_dict() has them.
NamedTensors weights_of(const torch::nn::Module& module);

/// Copies weights into the module's parameters and buffers, which keep type, device and memory
/// order. Names and shapes must match, else nothing is copied and the error names the first.
void load_weights(torch::nn::Module& module, const NamedTensors& weights);

struct CheckpointOptions {
  /// Made where missing. One Checkpoint at a time writes into it. Empty: save() is an error.
  std::string folder = {};
  /// False: rank 0 writes. True: local rank 0 of each node writes all, for nodes without a shared
  /// file system of which some may be lost.
  bool per_node = false;
  /// False: save() returns when all is on the disk.
  bool background = true;
  /// How long ranks wait for one that reads, or still writes the save before; then Error(timeout),
  /// as of collectives.h. Above 0.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

struct CheckpointPosition {
  std::int64_t step = 0;   ///< steps made, >= 0
  std::int64_t epoch = 0;  ///< as the program counts, >= 0
  bool operator==(const CheckpointPosition&) const = default;
};

/// Owner of an added part.
enum class CheckpointScope {
  shared,     ///< equal on all ranks: rank 0's is saved, and loaded by all
  each_rank,  ///< each rank's own, small: what all have is written into one file, or with shards
  shard,      ///< each rank's own, large: the rank itself writes it, but with per_node
};

struct CheckpointSaveOptions {
  bool best = false;  ///< it becomes `best` as well, until the next that is
};

struct CheckpointLoadOptions {
  std::string folder = {};
  /// "last", "previous" or "best". Empty: the newest.
  std::string slot = {};
  /// Leaves parts that are missing as they are, with a warning; false: they are an error.
  bool allow_missing_parts = false;
};

/// Saves what has been added to it, and loads it. docs/training.md, "Checkpoints", has the files,
/// what survives what, and which bits and ranks a resumed training has.
///
/// Collective: construct, add the same parts in the same order, save(), commit(), load() and
/// wait() on every rank of the world. Parts, and what they were given, must outlive it and stay
/// where they are. Errors: Error(invalid_argument), the same on every rank, naming rank, path and
/// what the system says. Thread rule: one thread at a time; functions given to add_...() are called
/// by save() and load(). load() holds all of the checkpoint in host memory on each rank.
class Checkpoint {
 public:
  using Tensors = NamedTensors;

  Checkpoint(const Context& context, const CheckpointOptions& options);
  /// Waits for the save under way, and warns where that fails.
  ~Checkpoint();
  Checkpoint(Checkpoint&&) noexcept;
  Checkpoint& operator=(Checkpoint&&) noexcept;

  // Before the first save() or load(). `name`: of a part, without '/'; each once.

  void add_weights(torch::nn::Module& module);
  /// State and options of the wrapped optimizer, by names of parameters: one of LibTorch's, or
  /// another that uses their state classes.
  void add_optimizer(const std::string& name, DistributedOptimizer& optimizer);
  /// The same for one that is not wrapped, and equal on all ranks.
  void add_optimizer(const std::string& name, torch::optim::Optimizer& optimizer,
                     const Tensors& named_parameters);
  void add_scaler(const std::string& name, GradScaler& scaler);
  /// A hook's memory, such as PowerSgd's errors; another number of ranks begins it anew. Not with
  /// static_graph, whose buckets change after the first step.
  void add_hook(const std::string& name, GradientHook& hook);
  /// LibTorch's default generators of this rank, on the CPU and on its GPU.
  void add_random_state();
  /// Tensors such as averaged weights: load() copies into them, with equal shapes.
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
  /// Anything in tensors. `load` must copy what it keeps.
  void add_state(const std::string& name, const std::function<Tensors()>& save,
                 const std::function<void(const Tensors&)>& load,
                 CheckpointScope scope = CheckpointScope::shared);

  /// Copies all, then writes it in the background; between steps of all optimizers. Waits for the
  /// save before; where that has failed on any rank, throws on every rank, and saves nothing.
  void save(const CheckpointPosition& position, const CheckpointSaveOptions& options = {});

  /// Says, after each step of all optimizers, that the training could go on from here. In a job of
  /// `horarun --elastic` that outlives this process in memory, from which the next generation goes
  /// on. On CPUs the memory of weights and wrapped optimizers' state is moved there by the first
  /// commit(), and what else was added is copied by each: no step is lost. What cannot be so (a
  /// hook's memory, Sharding::fused, GPUs, more than 1 MiB to copy, a kill in the midst of
  /// an update) goes on from whole copies, made as often as costs 1 % of the time, on each node. A
  /// generation's load() before any save() or commit() takes the newest of all these and of its own
  /// folder first. Other jobs: does nothing.
  void commit(const CheckpointPosition& position);

  /// Loads the newest complete checkpoint, and returns its position; nothing where there is none at
  /// all. Throws where there is one, but none is complete and undamaged.
  std::optional<CheckpointPosition> load(const CheckpointLoadOptions& options = {});

  /// Returns when the last save is on the disk on every rank; throws as save().
  void wait();

 private:
  struct HORA_HIDDEN State;
  std::unique_ptr<State> state_;
};

}  // namespace hora
