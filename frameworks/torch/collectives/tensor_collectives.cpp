// The public functions on dense tensors, each a line over start_collective or run_collective.
#include <hora/torch/collectives.h>
#include <hora/torch/groups.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "frameworks/torch/collectives/differentiable.h"
#include "frameworks/torch/collectives/pending_tensors.h"
#include "frameworks/torch/tensor_view.h"
#include "frameworks/torch/wire_type.h"

namespace hora {
using namespace internal;
namespace {

CallTensors single(const torch::Tensor& tensor) {
  return {.tensors = tensor};
}
CallTensors group(const Tensors& tensors) {
  return {.tensors = tensors, .is_group = true};
}

/// The type that a tensor travels in.
c10::ScalarType travelling_type(const std::string& name, const torch::Tensor& tensor,
                                Compression compression) {
  check_dense(name, tensor);
  const std::optional<DataType> type = to_data_type(tensor.scalar_type());
  if (!type || !is_floating_point(*type)) return tensor.scalar_type();
  return to_scalar_type(wire_type(compression, *type));
}

TensorResults run_compressed(const Context& context, const CallTensors& call,
                             const AllreduceOptions& options, Compression compression) {
  if (const std::string wrong = wrong_with(compression); !wrong.empty()) {
    refuse_tensor(options.name, wrong);
  }
  const auto type_of = [&](const auto& t) { return travelling_type(options.name, t, compression); };
  const bool nothing_to_do =
      std::all_of(call.tensors.begin(), call.tensors.end(),
                  [&](const auto& t) { return type_of(t) == t.scalar_type(); });
  if (nothing_to_do) return run_collective(context, call, options);
  const bool recorded = is_recorded(call.tensors);
  Tensors sent;
  for (const torch::Tensor& tensor : call.tensors) {
    sent.push_back(tensor.to(type_of(tensor), /*non_blocking=*/false, /*copy=*/!recorded));
  }
  const CallTensors narrow{.tensors = sent, .is_group = call.is_group};
  TensorResults results = recorded
                              ? run_collective(context, narrow, options)
                              : start_collective(context, narrow, options, Place::in_place)->wait();
  for (std::size_t i = 0; i < results.size(); ++i) {
    results[i].tensor = results[i].tensor.to(call.tensors[i].scalar_type());
  }
  return results;
}

AlltoallOptions with_splits(AlltoallOptions options, const torch::Tensor& splits) {
  check_dense(options.name, splits);
  if (splits.dim() != 1 || splits.numel() == 0 ||
      !torch::isIntegralType(splits.scalar_type(), /*includeBool=*/false)) {
    refuse_tensor(options.name, std::string("the splits are a tensor of type ") +
                                    torch::toString(splits.scalar_type()) + " with " +
                                    std::to_string(splits.dim()) +
                                    " dimensions; expected a one-dimensional one of integers, one "
                                    "for each rank of the process set");
  }
  const torch::Tensor host = splits.detach().to(torch::kCPU, torch::kLong).contiguous();
  const auto* first = host.data_ptr<std::int64_t>();
  options.splits.assign(first, first + host.numel());
  return options;
}

}  // namespace

torch::Device local_device(const Context& context) {
  return to_torch(context.device());
}

torch::Tensor allreduce(const Context& context, const torch::Tensor& tensor,
                        const AllreduceOptions& options) {
  return results_as<torch::Tensor>(run_collective(context, single(tensor), options));
}
torch::Tensor allreduce(const Context& context, const torch::Tensor& tensor,
                        const AllreduceOptions& options, Compression compression) {
  return results_as<torch::Tensor>(run_compressed(context, single(tensor), options, compression));
}
torch::Tensor& allreduce_(const Context& context, torch::Tensor& tensor,
                          const AllreduceOptions& options) {
  start_collective(context, single(tensor), options, Place::in_place)->wait();
  return tensor;
}
torch::Tensor broadcast(const Context& context, const torch::Tensor& tensor,
                        const BroadcastOptions& options) {
  return results_as<torch::Tensor>(run_collective(context, single(tensor), options));
}
torch::Tensor& broadcast_(const Context& context, torch::Tensor& tensor,
                          const BroadcastOptions& options) {
  start_collective(context, single(tensor), options, Place::in_place)->wait();
  return tensor;
}
torch::Tensor allgather(const Context& context, const torch::Tensor& tensor,
                        const AllgatherOptions& options) {
  return results_as<torch::Tensor>(run_collective(context, single(tensor), options));
}
AlltoallResult alltoall(const Context& context, const torch::Tensor& tensor,
                        const AlltoallOptions& options) {
  return results_as<AlltoallResult>(run_collective(context, single(tensor), options));
}
AlltoallResult alltoall(const Context& context, const torch::Tensor& tensor,
                        const torch::Tensor& splits, const AlltoallOptions& options) {
  return alltoall(context, tensor, with_splits(options, splits));
}
torch::Tensor reduce_scatter(const Context& context, const torch::Tensor& tensor,
                             const ReduceScatterOptions& options) {
  return results_as<torch::Tensor>(run_collective(context, single(tensor), options));
}

TensorHandle allreduce_async(const Context& context, const torch::Tensor& tensor,
                             const AllreduceOptions& options) {
  return TensorAccess::handle<TensorHandle>(start_collective(context, single(tensor), options));
}
TensorHandle allreduce_async_(const Context& context, torch::Tensor tensor,
                              const AllreduceOptions& options) {
  return TensorAccess::handle<TensorHandle>(
      start_collective(context, single(tensor), options, Place::in_place));
}
TensorHandle broadcast_async(const Context& context, const torch::Tensor& tensor,
                             const BroadcastOptions& options) {
  return TensorAccess::handle<TensorHandle>(start_collective(context, single(tensor), options));
}
TensorHandle broadcast_async_(const Context& context, torch::Tensor tensor,
                              const BroadcastOptions& options) {
  return TensorAccess::handle<TensorHandle>(
      start_collective(context, single(tensor), options, Place::in_place));
}
TensorHandle allgather_async(const Context& context, const torch::Tensor& tensor,
                             const AllgatherOptions& options) {
  return TensorAccess::handle<TensorHandle>(start_collective(context, single(tensor), options));
}
AlltoallHandle alltoall_async(const Context& context, const torch::Tensor& tensor,
                              const AlltoallOptions& options) {
  return TensorAccess::handle<AlltoallHandle>(start_collective(context, single(tensor), options));
}
AlltoallHandle alltoall_async(const Context& context, const torch::Tensor& tensor,
                              const torch::Tensor& splits, const AlltoallOptions& options) {
  return alltoall_async(context, tensor, with_splits(options, splits));
}
TensorHandle reduce_scatter_async(const Context& context, const torch::Tensor& tensor,
                                  const ReduceScatterOptions& options) {
  return TensorAccess::handle<TensorHandle>(start_collective(context, single(tensor), options));
}

Tensors grouped_allreduce(const Context& context, const Tensors& tensors,
                          const AllreduceOptions& options) {
  return results_as<Tensors>(run_collective(context, group(tensors), options));
}
Tensors grouped_allreduce(const Context& context, const Tensors& tensors,
                          const AllreduceOptions& options, Compression compression) {
  return results_as<Tensors>(run_compressed(context, group(tensors), options, compression));
}
void grouped_allreduce_(const Context& context, const Tensors& tensors,
                        const AllreduceOptions& options) {
  start_collective(context, group(tensors), options, Place::in_place)->wait();
}
Tensors grouped_broadcast(const Context& context, const Tensors& tensors,
                          const BroadcastOptions& options) {
  return results_as<Tensors>(run_collective(context, group(tensors), options));
}
void grouped_broadcast_(const Context& context, const Tensors& tensors,
                        const BroadcastOptions& options) {
  start_collective(context, group(tensors), options, Place::in_place)->wait();
}
Tensors grouped_allgather(const Context& context, const Tensors& tensors,
                          const AllgatherOptions& options) {
  return results_as<Tensors>(run_collective(context, group(tensors), options));
}
std::vector<AlltoallResult> grouped_alltoall(const Context& context, const Tensors& tensors,
                                             const AlltoallOptions& options) {
  return results_as<std::vector<AlltoallResult>>(run_collective(context, group(tensors), options));
}
Tensors grouped_reduce_scatter(const Context& context, const Tensors& tensors,
                               const ReduceScatterOptions& options) {
  return results_as<Tensors>(run_collective(context, group(tensors), options));
}

TensorGroupHandle grouped_allreduce_async(const Context& context, const Tensors& tensors,
                                          const AllreduceOptions& options) {
  return TensorAccess::handle<TensorGroupHandle>(
      start_collective(context, group(tensors), options));
}
TensorGroupHandle grouped_allreduce_async_(const Context& context, const Tensors& tensors,
                                           const AllreduceOptions& options) {
  return TensorAccess::handle<TensorGroupHandle>(
      start_collective(context, group(tensors), options, Place::in_place));
}
TensorGroupHandle grouped_broadcast_async(const Context& context, const Tensors& tensors,
                                          const BroadcastOptions& options) {
  return TensorAccess::handle<TensorGroupHandle>(
      start_collective(context, group(tensors), options));
}
TensorGroupHandle grouped_broadcast_async_(const Context& context, const Tensors& tensors,
                                           const BroadcastOptions& options) {
  return TensorAccess::handle<TensorGroupHandle>(
      start_collective(context, group(tensors), options, Place::in_place));
}
TensorGroupHandle grouped_allgather_async(const Context& context, const Tensors& tensors,
                                          const AllgatherOptions& options) {
  return TensorAccess::handle<TensorGroupHandle>(
      start_collective(context, group(tensors), options));
}
AlltoallGroupHandle grouped_alltoall_async(const Context& context, const Tensors& tensors,
                                           const AlltoallOptions& options) {
  return TensorAccess::handle<AlltoallGroupHandle>(
      start_collective(context, group(tensors), options));
}
TensorGroupHandle grouped_reduce_scatter_async(const Context& context, const Tensors& tensors,
                                               const ReduceScatterOptions& options) {
  return TensorAccess::handle<TensorGroupHandle>(
      start_collective(context, group(tensors), options));
}

}  // namespace hora
