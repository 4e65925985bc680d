#include <ATen/core/grad_mode.h>
#include <hora/torch_collectives.h>

#include <memory>
#include <utility>

#include "frameworks/torch/collectives/pending_tensor.h"
#include "frameworks/torch/tensor_view.h"

namespace hora {
namespace {

Handle submit(const Context& context, const TensorView& view, const AllreduceOptions& options) {
  return allreduce_async(context, view, options);
}
Handle submit(const Context& context, const TensorView& view, const BroadcastOptions& options) {
  return broadcast_async(context, view, options);
}

template <class Options>
TensorHandle start_in_place(const Context& context, torch::Tensor tensor, const Options& options) {
  check_dense(options.name, tensor);
  const torch::NoGradGuard no_grad;
  torch::Tensor contiguous = tensor.contiguous();
  Handle handle = submit(context, view_of(options.name, contiguous), options);
  return TensorHandle(std::make_unique<PendingInPlace>(std::move(handle), std::move(contiguous),
                                                       std::move(tensor)));
}

torch::Tensor contiguous_copy(const torch::Tensor& tensor) {
  return tensor.detach().clone(torch::MemoryFormat::Contiguous);
}

}  // namespace

torch::Device local_device(const Context& context) {
  return to_torch(context.device());
}

TensorHandle allreduce_async_(const Context& context, torch::Tensor tensor,
                              const AllreduceOptions& options) {
  return start_in_place(context, std::move(tensor), options);
}

TensorHandle allreduce_async(const Context& context, const torch::Tensor& tensor,
                             const AllreduceOptions& options) {
  check_dense(options.name, tensor);
  return start_in_place(context, contiguous_copy(tensor), options);
}

TensorHandle broadcast_async_(const Context& context, torch::Tensor tensor,
                              const BroadcastOptions& options) {
  return start_in_place(context, std::move(tensor), options);
}

TensorHandle broadcast_async(const Context& context, const torch::Tensor& tensor,
                             const BroadcastOptions& options) {
  check_dense(options.name, tensor);
  const bool sends = context.rank() == options.root;
  return start_in_place(context,
                        sends ? contiguous_copy(tensor)
                              : torch::empty_like(tensor.detach(), torch::MemoryFormat::Contiguous),
                        options);
}

torch::Tensor& allreduce_(const Context& context, torch::Tensor& tensor,
                          const AllreduceOptions& options) {
  allreduce_async_(context, tensor, options).wait();
  return tensor;
}

torch::Tensor& broadcast_(const Context& context, torch::Tensor& tensor,
                          const BroadcastOptions& options) {
  broadcast_async_(context, tensor, options).wait();
  return tensor;
}

}  // namespace hora
