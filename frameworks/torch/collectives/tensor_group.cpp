#include "frameworks/torch/collectives/tensor_group.h"

#include <algorithm>

#include "frameworks/torch/tensor_view.h"

namespace hora {
namespace {

template <class Handle>
bool all_ready(const std::vector<Handle>& handles) {
  return std::all_of(handles.begin(), handles.end(), [](const auto& each) { return each.ready(); });
}

}  // namespace

void check_group(const std::string& name, const std::vector<torch::Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_dense(member_name(name, i), tensors[i]);
    if (tensors[i].device() == tensors[0].device()) continue;
    refuse_tensor(member_name(name, i), "is on " + tensors[i].device().str() +
                                            ", and the group's first one on " +
                                            tensors[0].device().str() +
                                            "; expected one device for all tensors of a group");
  }
}

std::string member_name(const std::string& name, std::size_t index) {
  return name.empty() ? name : name + "." + std::to_string(index);
}

bool GroupHandle::ready() const {
  return all_ready(handles_);
}
bool AlltoallGroupHandle::ready() const {
  return all_ready(handles_);
}

std::vector<torch::Tensor> GroupHandle::wait() {
  return wait_for_all(handles_);
}

std::vector<AlltoallResult> AlltoallGroupHandle::wait() {
  return wait_for_all(handles_);
}

GroupHandle grouped_allreduce_async(const Context& context,
                                    const std::vector<torch::Tensor>& tensors,
                                    const AllreduceOptions& options) {
  return GroupHandle(start_group(tensors, options, [&](const auto& tensor, const auto& mine) {
    return allreduce_async(context, tensor, mine);
  }));
}

GroupHandle grouped_allreduce_async_(const Context& context,
                                     const std::vector<torch::Tensor>& tensors,
                                     const AllreduceOptions& options) {
  return GroupHandle(start_group(tensors, options, [&](const auto& tensor, const auto& mine) {
    return allreduce_async_(context, tensor, mine);
  }));
}

GroupHandle grouped_broadcast_async(const Context& context,
                                    const std::vector<torch::Tensor>& tensors,
                                    const BroadcastOptions& options) {
  return GroupHandle(start_group(tensors, options, [&](const auto& tensor, const auto& mine) {
    return broadcast_async(context, tensor, mine);
  }));
}

GroupHandle grouped_broadcast_async_(const Context& context,
                                     const std::vector<torch::Tensor>& tensors,
                                     const BroadcastOptions& options) {
  return GroupHandle(start_group(tensors, options, [&](const auto& tensor, const auto& mine) {
    return broadcast_async_(context, tensor, mine);
  }));
}

GroupHandle grouped_allgather_async(const Context& context,
                                    const std::vector<torch::Tensor>& tensors,
                                    const AllgatherOptions& options) {
  return GroupHandle(start_group(tensors, options, [&](const auto& tensor, const auto& mine) {
    return allgather_async(context, tensor, mine);
  }));
}

AlltoallGroupHandle grouped_alltoall_async(const Context& context,
                                           const std::vector<torch::Tensor>& tensors,
                                           const AlltoallOptions& options) {
  return AlltoallGroupHandle(start_group(
      tensors, options,
      [&](const auto& tensor, const auto& mine) { return alltoall_async(context, tensor, mine); }));
}

GroupHandle grouped_reduce_scatter_async(const Context& context,
                                         const std::vector<torch::Tensor>& tensors,
                                         const ReduceScatterOptions& options) {
  return GroupHandle(start_group(tensors, options, [&](const auto& tensor, const auto& mine) {
    return reduce_scatter_async(context, tensor, mine);
  }));
}

void grouped_allreduce_(const Context& context, const std::vector<torch::Tensor>& tensors,
                        const AllreduceOptions& options) {
  grouped_allreduce_async_(context, tensors, options).wait();
}

void grouped_broadcast_(const Context& context, const std::vector<torch::Tensor>& tensors,
                        const BroadcastOptions& options) {
  grouped_broadcast_async_(context, tensors, options).wait();
}

}  // namespace hora
