/// Collectives on dense tensors of LibTorch, of any strides. Options, results, errors:
/// collectives.h; besides, Error(invalid_argument) for sparse or undefined tensors and types that
/// hora does not have. One on another device than local_device() is copied there, and the result
/// back.
///
///     torch::Tensor mean = hora::allreduce(world, loss, {.name = "loss"});
///     hora::broadcast_(world, weight, {.name = "weight", .root = 0});        // in place
///     torch::Tensor all = hora::allgather(world, predictions, {.name = "predictions"});
///
/// Names that end in `_` work in place. Results of allreduce and broadcast keep the memory format;
/// others lie in hora's memory, until the last tensor on it goes. On a GPU all is ordered after the
/// current stream, and wait() makes the current stream wait, not the host; other results than
/// allreduce's and broadcast's are for the stream of the submission. Autograd differentiates
/// blocking calls out of place: docs/training.md, "Autograd". Thread rule: any thread; a handle,
/// one thread at a time.
#pragma once

#include <hora/export.h>
#include <hora/hora.h>
#include <hora/torch/compression.h>
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

/// Returns this rank's device: GPU r modulo the number that it sees, for rank r of a host, or the
/// CPU where the job has none. Of R ranks that see 2R GPUs each may have GPU r + R, too.
torch::Device local_device(const Context& context);

struct AlltoallResult {
  torch::Tensor tensor;
  std::vector<std::int64_t> received_splits;  ///< rows from each rank of the set, in its order
};

torch::Tensor allreduce(const Context& context, const torch::Tensor& tensor,
                        const AllreduceOptions& options = {});
/// Reduces in the narrower type, and widens again; the same compression on every rank.
torch::Tensor allreduce(const Context& context, const torch::Tensor& tensor,
                        const AllreduceOptions& options, Compression compression);
torch::Tensor& allreduce_(const Context& context, torch::Tensor& tensor,
                          const AllreduceOptions& options = {});
torch::Tensor broadcast(const Context& context, const torch::Tensor& tensor,
                        const BroadcastOptions& options = {});
torch::Tensor& broadcast_(const Context& context, torch::Tensor& tensor,
                          const BroadcastOptions& options = {});
torch::Tensor allgather(const Context& context, const torch::Tensor& tensor,
                        const AllgatherOptions& options = {});
AlltoallResult alltoall(const Context& context, const torch::Tensor& tensor,
                        const AlltoallOptions& options = {});
/// `splits`: integers of one dimension, on any device, in place of options.splits.
AlltoallResult alltoall(const Context& context, const torch::Tensor& tensor,
                        const torch::Tensor& splits, const AlltoallOptions& options = {});
torch::Tensor reduce_scatter(const Context& context, const torch::Tensor& tensor,
                             const ReduceScatterOptions& options = {});

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
  CollectiveHandle() noexcept;
  CollectiveHandle(CollectiveHandle&&) noexcept;
  CollectiveHandle& operator=(CollectiveHandle&&) noexcept;
  ~CollectiveHandle();

  bool ready() const;
  /// Waits, and returns the result (in place: the tensor). Throws as Handle::wait().
  T wait();
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const;
  bool valid() const noexcept { return pending_ != nullptr; }

 private:
  friend struct internal::TensorAccess;
  explicit CollectiveHandle(std::unique_ptr<internal::PendingTensors> pending) noexcept;

  std::unique_ptr<internal::PendingTensors> pending_;
};
using TensorHandle = CollectiveHandle<torch::Tensor>;
using AlltoallHandle = CollectiveHandle<AlltoallResult>;

[[nodiscard]] TensorHandle allreduce_async(const Context& context, const torch::Tensor& tensor,
                                           const AllreduceOptions& options = {});
[[nodiscard]] TensorHandle allreduce_async_(const Context& context, torch::Tensor tensor,
                                            const AllreduceOptions& options = {});
[[nodiscard]] TensorHandle broadcast_async(const Context& context, const torch::Tensor& tensor,
                                           const BroadcastOptions& options = {});
[[nodiscard]] TensorHandle broadcast_async_(const Context& context, torch::Tensor tensor,
                                            const BroadcastOptions& options = {});
[[nodiscard]] TensorHandle allgather_async(const Context& context, const torch::Tensor& tensor,
                                           const AllgatherOptions& options = {});
[[nodiscard]] AlltoallHandle alltoall_async(const Context& context, const torch::Tensor& tensor,
                                            const AlltoallOptions& options = {});
[[nodiscard]] AlltoallHandle alltoall_async(const Context& context, const torch::Tensor& tensor,
                                            const torch::Tensor& splits,
                                            const AlltoallOptions& options = {});
[[nodiscard]] TensorHandle reduce_scatter_async(const Context& context, const torch::Tensor& tensor,
                                                const ReduceScatterOptions& options = {});

}  // namespace hora
