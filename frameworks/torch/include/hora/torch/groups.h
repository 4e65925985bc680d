/// Collectives on several tensors at once, under one handle, as <hora/groups.h>; gradients as in
/// collectives.h, in groups again.
///
///     auto averages = hora::grouped_allreduce(world, {loss, accuracy}, {.name = "metrics"});
///     hora::TensorGroupHandle handle = hora::grouped_allreduce_async(world, tensors);
///     averages = handle.wait();
///
/// Errors: collectives.h; besides, Error(invalid_argument) for a group on several devices. wait()
/// waits for all, then throws the first one's error. Thread rule: any thread; a handle, one thread
/// at a time.
#pragma once

#include <hora/export.h>
#include <hora/torch/collectives.h>

#include <vector>

namespace HORA_EXPORT hora {

using TensorGroupHandle = CollectiveHandle<std::vector<torch::Tensor>>;
using AlltoallGroupHandle = CollectiveHandle<std::vector<AlltoallResult>>;

std::vector<torch::Tensor> grouped_allreduce(const Context& context,
                                             const std::vector<torch::Tensor>& tensors,
                                             const AllreduceOptions& options = {});
std::vector<torch::Tensor> grouped_allreduce(const Context& context,
                                             const std::vector<torch::Tensor>& tensors,
                                             const AllreduceOptions& options,
                                             Compression compression);
void grouped_allreduce_(const Context& context, const std::vector<torch::Tensor>& tensors,
                        const AllreduceOptions& options = {});
std::vector<torch::Tensor> grouped_broadcast(const Context& context,
                                             const std::vector<torch::Tensor>& tensors,
                                             const BroadcastOptions& options = {});
void grouped_broadcast_(const Context& context, const std::vector<torch::Tensor>& tensors,
                        const BroadcastOptions& options = {});
std::vector<torch::Tensor> grouped_allgather(const Context& context,
                                             const std::vector<torch::Tensor>& tensors,
                                             const AllgatherOptions& options = {});
/// options.splits are those of every tensor.
std::vector<AlltoallResult> grouped_alltoall(const Context& context,
                                             const std::vector<torch::Tensor>& tensors,
                                             const AlltoallOptions& options = {});
std::vector<torch::Tensor> grouped_reduce_scatter(const Context& context,
                                                  const std::vector<torch::Tensor>& tensors,
                                                  const ReduceScatterOptions& options = {});

[[nodiscard]] TensorGroupHandle grouped_allreduce_async(const Context& context,
                                                        const std::vector<torch::Tensor>& tensors,
                                                        const AllreduceOptions& options = {});
[[nodiscard]] TensorGroupHandle grouped_allreduce_async_(const Context& context,
                                                         const std::vector<torch::Tensor>& tensors,
                                                         const AllreduceOptions& options = {});
[[nodiscard]] TensorGroupHandle grouped_broadcast_async(const Context& context,
                                                        const std::vector<torch::Tensor>& tensors,
                                                        const BroadcastOptions& options = {});
[[nodiscard]] TensorGroupHandle grouped_broadcast_async_(const Context& context,
                                                         const std::vector<torch::Tensor>& tensors,
                                                         const BroadcastOptions& options = {});
[[nodiscard]] TensorGroupHandle grouped_allgather_async(const Context& context,
                                                        const std::vector<torch::Tensor>& tensors,
                                                        const AllgatherOptions& options = {});
[[nodiscard]] AlltoallGroupHandle grouped_alltoall_async(const Context& context,
                                                         const std::vector<torch::Tensor>& tensors,
                                                         const AlltoallOptions& options = {});
[[nodiscard]] TensorGroupHandle grouped_reduce_scatter_async(
    const Context& context, const std::vector<torch::Tensor>& tensors,
    const ReduceScatterOptions& options = {});

}  // namespace hora
