#include "frameworks/torch/collectives/tensor_exchanges.h"

#include <ATen/core/grad_mode.h>

#include <memory>
#include <utility>

#include "frameworks/torch/collectives/pending_tensor.h"
#include "frameworks/torch/tensor_view.h"

namespace hora {
namespace {

ResultHandle submit(const Context& context, const TensorView& view,
                    const AllgatherOptions& options) {
  return allgather_async(context, view, options);
}
ResultHandle submit(const Context& context, const TensorView& view,
                    const AlltoallOptions& options) {
  return alltoall_async(context, view, options);
}
ResultHandle submit(const Context& context, const TensorView& view,
                    const ReduceScatterOptions& options) {
  return reduce_scatter_async(context, view, options);
}

template <class Options>
AlltoallHandle start(const Context& context, const torch::Tensor& tensor, const Options& options) {
  check_dense(options.name, tensor);
  const torch::NoGradGuard no_grad;
  torch::Tensor sent = tensor.detach().contiguous();
  ResultHandle handle = submit(context, view_of(options.name, sent), options);
  return {std::move(handle), std::move(sent)};
}

TensorHandle without_splits(AlltoallHandle handle) {
  return TensorHandle(std::make_unique<PendingResult>(std::move(handle)));
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

AlltoallHandle allgather_rows_async(const Context& context, const torch::Tensor& tensor,
                                    const AllgatherOptions& options) {
  return start(context, tensor, options);
}

TensorHandle allgather_async(const Context& context, const torch::Tensor& tensor,
                             const AllgatherOptions& options) {
  return without_splits(allgather_rows_async(context, tensor, options));
}

AlltoallHandle alltoall_async(const Context& context, const torch::Tensor& tensor,
                              const AlltoallOptions& options) {
  return start(context, tensor, options);
}

AlltoallHandle alltoall_async(const Context& context, const torch::Tensor& tensor,
                              const torch::Tensor& splits, const AlltoallOptions& options) {
  return start(context, tensor, with_splits(options, splits));
}

TensorHandle reduce_scatter_async(const Context& context, const torch::Tensor& tensor,
                                  const ReduceScatterOptions& options) {
  return without_splits(start(context, tensor, options));
}

AlltoallResult alltoall(const Context& context, const torch::Tensor& tensor,
                        const torch::Tensor& splits, const AlltoallOptions& options) {
  return alltoall(context, tensor, with_splits(options, splits));
}

}  // namespace hora
