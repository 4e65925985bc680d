// The blocking collectives out of place, with the gradients of torch_collectives.h.
#include <memory>

#include "frameworks/torch/collectives/collective_gradients.h"
#include "frameworks/torch/collectives/differentiable.h"
#include "frameworks/torch/collectives/tensor_exchanges.h"
#include "frameworks/torch/tensor_view.h"

namespace hora {

torch::Tensor allreduce(const Context& context, const torch::Tensor& tensor,
                        const AllreduceOptions& options) {
  return differentiable(
             {tensor}, [&] { return Tensors{allreduce_async(context, tensor, options).wait()}; },
             [&context, options](const Tensors& gradients) {
               check_has_gradient(options);
               return Tensors{allreduce(context, gradients[0], backward_options(options))};
             })
      .front();
}

torch::Tensor broadcast(const Context& context, const torch::Tensor& tensor,
                        const BroadcastOptions& options) {
  return differentiable(
             {tensor}, [&] { return Tensors{broadcast_async(context, tensor, options).wait()}; },
             [&context, options](const Tensors& gradients) {
               const auto sum = allreduce(context, gradients[0], sum_for(options));
               return Tensors{at_root(context, sum, options)};
             })
      .front();
}

torch::Tensor allgather(const Context& context, const torch::Tensor& tensor,
                        const AllgatherOptions& options) {
  auto mine = std::make_shared<MyRows>();
  return differentiable(
             {tensor},
             [&] {
               AlltoallResult gathered = allgather_rows_async(context, tensor, options).wait();
               *mine = my_rows(context, options, gathered.received_splits, tensor);
               return Tensors{std::move(gathered.tensor)};
             },
             [&context, options, mine](const Tensors& gradients) {
               return Tensors{
                   rows_of(allreduce(context, gradients[0], average_for(options)), *mine)};
             })
      .front();
}

AlltoallResult alltoall(const Context& context, const torch::Tensor& tensor,
                        const AlltoallOptions& options) {
  auto received = std::make_shared<std::vector<std::int64_t>>();
  torch::Tensor result = differentiable(
                             {tensor},
                             [&] {
                               AlltoallResult exchanged =
                                   alltoall_async(context, tensor, options).wait();
                               *received = std::move(exchanged.received_splits);
                               return Tensors{std::move(exchanged.tensor)};
                             },
                             [&context, options, received](const Tensors& gradients) {
                               AlltoallOptions back = backward_options(options);
                               back.splits = *received;
                               return Tensors{alltoall(context, gradients[0], back).tensor};
                             })
                             .front();
  return {std::move(result), *received};
}

torch::Tensor reduce_scatter(const Context& context, const torch::Tensor& tensor,
                             const ReduceScatterOptions& options) {
  return differentiable(
             {tensor},
             [&] { return Tensors{reduce_scatter_async(context, tensor, options).wait()}; },
             [&context, options](const Tensors& gradients) {
               check_has_gradient(options);
               return Tensors{allgather(context, gradients[0] * gather_scale(context, options),
                                        gather_for(options))};
             })
      .front();
}

}  // namespace hora
