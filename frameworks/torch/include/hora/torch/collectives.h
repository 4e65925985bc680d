/// Collectives on LibTorch's tensors: dense ones of any strides, with any number of dimensions and
/// elements. What each does, its options and its errors: collectives.h; besides,
/// Error(invalid_argument) for sparse or undefined tensors and for types hora does not have.
///
/// hora works on the CPU and on local_device(). A tensor on another device, such as a second GPU of
/// this process, is copied to local_device(), and what comes out is copied back.
///
///     torch::Tensor mean = hora::allreduce(world, loss, {.name = "loss"});
///     hora::broadcast_(world, weight, {.name = "weight", .root = 0});        // in place
///     torch::Tensor all = hora::allgather(world, predictions, {.name = "predictions"});
///
/// Names that end in `_` work in place; the others leave their argument alone. Results of allreduce
/// and broadcast have its memory format (channels-last); those of allgather, alltoall and
/// reduce_scatter lie in hora's memory, which is freed with the last tensor on it.
///
/// On a GPU they are ordered after the current stream, and wait() makes the current stream wait,
/// not the host. Results of allgather, alltoall and reduce_scatter are for the stream that was
/// current when they were submitted; for another one, order the two (result.h).
///
/// Autograd differentiates calls that are out of place and not asynchronous, with Horovod's
/// gradients:
///   allreduce       the gradient, reduced with the same options
///   broadcast       at the root the sum of all gradients, elsewhere zeros
///   allgather       this rank's rows of the average of all gradients
///   alltoall        the gradient's rows, each sent back to where its row came from
///   reduce_scatter  all gradients, gathered; of a sum times the number of ranks
/// (For the sum of all ranks' losses, allgather's is that gradient divided by the number of ranks,
/// reduce_scatter's multiplied by it.) Backward is collective, under "<name>.backward": on all
/// ranks of the set the input requires a gradient or on none, and backward passes through the
/// result on all or on none. The context must outlive the graph and stay where it is. Where nothing
/// requires a gradient, or under torch::NoGradGuard, nothing is recorded. Reductions but sum and
/// average have no gradient: Error(invalid_argument) out of backward().
///
/// Thread rule: any thread; a handle, one thread at a time.
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

/// The device this rank should compute on: its GPU, or the CPU where the job has none. Rank r of a
/// host has GPU r of those it sees (r modulo their number). So of R ranks that see 2R GPUs each may
/// have GPU r + R beside it, for a model on two.
torch::Device local_device(const Context& context);

struct AlltoallResult {
  torch::Tensor tensor;
  std::vector<std::int64_t> received_splits;  ///< rows from each rank of the set, in its order
};

torch::Tensor allreduce(const Context& context, const torch::Tensor& tensor,
                        const AllreduceOptions& options = {});
/// Reduced in the narrower type, and widened again. The same compression on every rank.
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
/// `splits`: one-dimensional, of integers, on any device; in place of options.splits.
AlltoallResult alltoall(const Context& context, const torch::Tensor& tensor,
                        const torch::Tensor& splits, const AlltoallOptions& options = {});
torch::Tensor reduce_scatter(const Context& context, const torch::Tensor& tensor,
                             const ReduceScatterOptions& options = {});

/// A call's collectives under way, which give a T; keeps the tensors alive that they work on.
/// Move-only. Dropped without wait() it waits, as Handle does; one in place leaves a tensor that is
/// not contiguous as it was. While an exception unwinds the stack it waits no longer than a Handle,
/// and the tensors' memory is never freed; one in place may still change its tensor then.
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

  /// True when wait() would not block.
  bool ready() const;
  /// Waits, and returns the result (in place: the tensor with its new values). Throws as
  /// Handle::wait().
  T wait();
  /// As Handle::wait_for(): true where all is done, and wait() then gives the result or throws.
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds timeout) const;
  /// True until wait() has returned or thrown.
  bool valid() const noexcept { return pending_ != nullptr; }

 private:
  friend struct internal::TensorAccess;
  explicit CollectiveHandle(std::unique_ptr<internal::PendingTensors> pending) noexcept;

  std::unique_ptr<internal::PendingTensors> pending_;
};
/// The handle of one tensor's collective: it gives one tensor.
using TensorHandle = CollectiveHandle<torch::Tensor>;
/// The handle of one tensor's alltoall.
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
