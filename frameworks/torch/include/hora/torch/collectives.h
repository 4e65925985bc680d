/// Collectives on dense tensors of LibTorch, of any strides, alone or in groups; on sparse tensors,
/// modules, optimizers' state. Options, results, errors: <hora/collectives.h>; besides,
/// Error(invalid_argument) for sparse or undefined tensors and types that hora does not have.
///
///     torch::Tensor mean = hora::allreduce(world, loss, {.name = "loss"});
///     hora::broadcast_(world, weight, {.name = "weight", .root = 0});        // in place
///     torch::Tensor all = hora::allgather(world, predictions, {.name = "predictions"});
///     auto averages = hora::grouped_allreduce(world, {loss, accuracy}, {.name = "metrics"});
///
/// Names that end in `_` work in place. Results of allreduce and broadcast keep the memory format;
/// others lie in hora's memory, until the last tensor on it goes. On a GPU wait() makes the current
/// stream wait, not the host. Tensors on other devices than local_device() are copied there and
/// back. Autograd: docs/training.md. Thread rule: any thread; a handle, one thread at a time.
#pragma once

#include <hora/export.h>
#include <hora/hora.h>
#include <hora/objects.h>
#include <hora/torch/compression.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

namespace hora::internal {
class PendingTensors;
struct TensorAccess;
}  // namespace hora::internal

namespace HORA_EXPORT hora {

using Tensors = std::vector<torch::Tensor>;

/// Returns this rank's device: GPU r modulo the number that it sees, for rank r of a host, or the
/// CPU where the job has none. Of R ranks that see 2R GPUs each may have GPU r + R, too.
torch::Device local_device(const Context& context);

struct AlltoallResult {
  torch::Tensor tensor;
  std::vector<std::int64_t> received_splits;  ///< rows from each rank of the set, in its order
};

torch::Tensor allreduce(const Context&, const torch::Tensor&, const AllreduceOptions& = {});
/// Reduces in the narrower type, and widens again; the same compression on every rank.
torch::Tensor allreduce(const Context&, const torch::Tensor&, const AllreduceOptions&, Compression);
torch::Tensor& allreduce_(const Context&, torch::Tensor&, const AllreduceOptions& = {});
torch::Tensor broadcast(const Context&, const torch::Tensor&, const BroadcastOptions& = {});
torch::Tensor& broadcast_(const Context&, torch::Tensor&, const BroadcastOptions& = {});
torch::Tensor allgather(const Context&, const torch::Tensor&, const AllgatherOptions& = {});
AlltoallResult alltoall(const Context&, const torch::Tensor&, const AlltoallOptions& = {});
/// `splits`: integers of one dimension, on any device, in place of options.splits.
AlltoallResult alltoall(const Context&, const torch::Tensor&, const torch::Tensor& splits,
                        const AlltoallOptions& = {});
torch::Tensor reduce_scatter(const Context&, const torch::Tensor&,
                             const ReduceScatterOptions& = {});

/// Collectives of one call under way; keeps their tensors alive. Dropped without wait() it waits as
/// Handle does; one in place leaves a tensor that is not contiguous as it was. While an exception
/// unwinds, the tensors' memory is never freed; one in place may still change. Move-only.
///
///     hora::TensorHandle handle = hora::allreduce_async(world, loss, {.name = "loss"});
///     compute_something_else();
///     torch::Tensor average = handle.wait();
template <class T>
class CollectiveHandle {
 public:
  CollectiveHandle() noexcept = default;
  CollectiveHandle(CollectiveHandle&&) noexcept = default;
  CollectiveHandle& operator=(CollectiveHandle&&) noexcept = default;

  bool ready() const;
  /// Waits, and returns the result (in place: the tensor). Throws as Handle::wait(), of a group
  /// the first error when all are done.
  T wait();
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const;
  bool valid() const noexcept { return pending_ != nullptr; }

 private:
  friend struct internal::TensorAccess;
  std::shared_ptr<internal::PendingTensors> pending_;
};
using TensorHandle = CollectiveHandle<torch::Tensor>;
using AlltoallHandle = CollectiveHandle<AlltoallResult>;
using TensorGroupHandle = CollectiveHandle<Tensors>;
using AlltoallGroupHandle = CollectiveHandle<std::vector<AlltoallResult>>;

[[nodiscard]] TensorHandle allreduce_async(const Context&, const torch::Tensor&,
                                           const AllreduceOptions& = {});
[[nodiscard]] TensorHandle allreduce_async_(const Context&, torch::Tensor,
                                            const AllreduceOptions& = {});
[[nodiscard]] TensorHandle broadcast_async(const Context&, const torch::Tensor&,
                                           const BroadcastOptions& = {});
[[nodiscard]] TensorHandle broadcast_async_(const Context&, torch::Tensor,
                                            const BroadcastOptions& = {});
[[nodiscard]] TensorHandle allgather_async(const Context&, const torch::Tensor&,
                                           const AllgatherOptions& = {});
[[nodiscard]] AlltoallHandle alltoall_async(const Context&, const torch::Tensor&,
                                            const AlltoallOptions& = {});
[[nodiscard]] AlltoallHandle alltoall_async(const Context&, const torch::Tensor&,
                                            const torch::Tensor& splits,
                                            const AlltoallOptions& = {});
[[nodiscard]] TensorHandle reduce_scatter_async(const Context&, const torch::Tensor&,
                                                const ReduceScatterOptions& = {});

// Several tensors at once, all on one device, under one handle, as <hora/groups.h>.

Tensors grouped_allreduce(const Context&, const Tensors&, const AllreduceOptions& = {});
Tensors grouped_allreduce(const Context&, const Tensors&, const AllreduceOptions&, Compression);
void grouped_allreduce_(const Context&, const Tensors&, const AllreduceOptions& = {});
Tensors grouped_broadcast(const Context&, const Tensors&, const BroadcastOptions& = {});
void grouped_broadcast_(const Context&, const Tensors&, const BroadcastOptions& = {});
Tensors grouped_allgather(const Context&, const Tensors&, const AllgatherOptions& = {});
/// options.splits are those of every tensor.
std::vector<AlltoallResult> grouped_alltoall(const Context&, const Tensors&,
                                             const AlltoallOptions& = {});
Tensors grouped_reduce_scatter(const Context&, const Tensors&, const ReduceScatterOptions& = {});

[[nodiscard]] TensorGroupHandle grouped_allreduce_async(const Context&, const Tensors&,
                                                        const AllreduceOptions& = {});
[[nodiscard]] TensorGroupHandle grouped_allreduce_async_(const Context&, const Tensors&,
                                                         const AllreduceOptions& = {});
[[nodiscard]] TensorGroupHandle grouped_broadcast_async(const Context&, const Tensors&,
                                                        const BroadcastOptions& = {});
[[nodiscard]] TensorGroupHandle grouped_broadcast_async_(const Context&, const Tensors&,
                                                         const BroadcastOptions& = {});
[[nodiscard]] TensorGroupHandle grouped_allgather_async(const Context&, const Tensors&,
                                                        const AllgatherOptions& = {});
[[nodiscard]] AlltoallGroupHandle grouped_alltoall_async(const Context&, const Tensors&,
                                                         const AlltoallOptions& = {});
[[nodiscard]] TensorGroupHandle grouped_reduce_scatter_async(const Context&, const Tensors&,
                                                             const ReduceScatterOptions& = {});

/// Returns the sum or average of all ranks' sparse tensors (COO), coalesced, added in the type of
/// the values. Indices and values are gathered: memory and time grow with the ranks. Throws the
/// same Error(mismatch) on every rank where sizes differ. Autograd does not see it.
torch::Tensor sparse_allreduce(const Context&, const torch::Tensor&, const AllreduceOptions& = {});
[[nodiscard]] TensorHandle sparse_allreduce_async(const Context&, const torch::Tensor&,
                                                  const AllreduceOptions& = {});

/// Makes parameters and buffers on every rank of the set those of world rank `root`, to the bit,
/// before the first step. Other shapes or types are an Error(mismatch) that names the parameter;
/// one that only some ranks have is waited for, and HORA_STALL_WARNING names it. Collective.
void broadcast_parameters(const Context& context, torch::nn::Module& module, int root = 0,
                          ProcessSet process_set = kWorld);
/// Broadcasts the buffers alone, such as BatchNorm's running statistics.
void broadcast_buffers(const Context& context, torch::nn::Module& module, int root = 0,
                       ProcessSet process_set = kWorld);

// Tensors of shapes and types that other ranks do not know, as <hora/objects.h> has bytes and
// texts.

/// Returns the root's tensors on every rank, on the CPU; other ranks' are ignored.
Tensors broadcast_object(const Context& context, const Tensors& tensors,
                         const BroadcastObjectOptions& options = {});

/// Returns every rank's tensors, on the CPU, in the order of the set's ranks.
std::vector<Tensors> allgather_object(const Context& context, const Tensors& tensors,
                                      const AllgatherOptions& options = {});

/// Makes state and options of every parameter group those of world rank `root`, to the bit, whoever
/// has made steps; state comes to its parameter's device. For LibTorch's optimizers and others that
/// use their state classes (else the same Error(invalid_argument) on every rank). Collective.
/// Throws the same Error(mismatch) on every rank where classes or groups' parameters differ.
///
///     if (world.rank() == 0) torch::load(adam, "adam.pt");      // a checkpoint that rank 0 has
///     hora::broadcast_optimizer_state(world, adam);
void broadcast_optimizer_state(const Context& context, torch::optim::Optimizer& optimizer,
                               int root = 0, ProcessSet process_set = kWorld);

}  // namespace hora
