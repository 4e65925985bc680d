// The blocking collectives on groups out of place, with the gradients of torch_collectives.h.
#include <memory>
#include <utility>

#include "frameworks/torch/collectives/collective_gradients.h"
#include "frameworks/torch/collectives/differentiable.h"
#include "frameworks/torch/collectives/tensor_exchanges.h"
#include "frameworks/torch/collectives/tensor_group.h"

namespace hora {
namespace {

template <class F>
Tensors transformed(const Tensors& tensors, F f) {
  Tensors results;
  results.reserve(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) results.push_back(f(tensors[i], i));
  return results;
}

using Splits = std::vector<std::int64_t>;

/// `splits`: by tensor, in place of the options'.
std::vector<AlltoallResult> exchange(const Context& context, const Tensors& tensors,
                                     const AlltoallOptions& options,
                                     const std::vector<Splits>& splits) {
  auto received = std::make_shared<std::vector<Splits>>();
  const Tensors exchanged = differentiable(
      tensors,
      [&] {
        auto handles =
            start_group(tensors, options, [&, i = 0U](const auto& tensor, auto member) mutable {
              member.splits = splits[i++];
              return alltoall_async(context, tensor, member);
            });
        auto results = wait_for_all(handles);
        for (AlltoallResult& each : results) {
          received->push_back(std::move(each.received_splits));
        }
        return transformed(tensors, [&](const auto&, std::size_t i) { return results[i].tensor; });
      },
      [&context, options, received](const Tensors& gradients) {
        const auto back = exchange(context, gradients, backward_options(options), *received);
        return transformed(gradients, [&](const auto&, std::size_t i) { return back[i].tensor; });
      });
  std::vector<AlltoallResult> results;
  for (std::size_t i = 0; i < exchanged.size(); ++i) {
    results.push_back({exchanged[i], (*received)[i]});
  }
  return results;
}

}  // namespace

Tensors grouped_allreduce(const Context& context, const Tensors& tensors,
                          const AllreduceOptions& options) {
  return differentiable(
      tensors, [&] { return grouped_allreduce_async(context, tensors, options).wait(); },
      [&context, options](const Tensors& gradients) {
        check_has_gradient(options);
        return grouped_allreduce(context, gradients, backward_options(options));
      });
}

Tensors grouped_broadcast(const Context& context, const Tensors& tensors,
                          const BroadcastOptions& options) {
  return differentiable(
      tensors, [&] { return grouped_broadcast_async(context, tensors, options).wait(); },
      [&context, options](const Tensors& gradients) {
        return transformed(
            grouped_allreduce(context, gradients, sum_for(options)),
            [&](const auto& sum, std::size_t) { return at_root(context, sum, options); });
      });
}

Tensors grouped_allgather(const Context& context, const Tensors& tensors,
                          const AllgatherOptions& options) {
  auto mine = std::make_shared<std::vector<MyRows>>();
  return differentiable(
      tensors,
      [&] {
        auto handles = start_group(tensors, options, [&](const auto& tensor, const auto& member) {
          return allgather_rows_async(context, tensor, member);
        });
        return transformed(
            tensors, [&, results = wait_for_all(handles)](const auto& tensor, std::size_t i) {
              mine->push_back(my_rows(context, options, results[i].received_splits, tensor));
              return results[i].tensor;
            });
      },
      [&context, options, mine](const Tensors& gradients) {
        return transformed(
            grouped_allreduce(context, gradients, average_for(options)),
            [&](const auto& average, std::size_t i) { return rows_of(average, (*mine)[i]); });
      });
}

std::vector<AlltoallResult> grouped_alltoall(const Context& context, const Tensors& tensors,
                                             const AlltoallOptions& options) {
  return exchange(context, tensors, options, std::vector<Splits>(tensors.size(), options.splits));
}

Tensors grouped_reduce_scatter(const Context& context, const Tensors& tensors,
                               const ReduceScatterOptions& options) {
  return differentiable(
      tensors, [&] { return grouped_reduce_scatter_async(context, tensors, options).wait(); },
      [&context, options](const Tensors& gradients) {
        check_has_gradient(options);
        const double scale = gather_scale(context, options);
        return grouped_allgather(
            context, transformed(gradients, [&](const auto& g, std::size_t) { return g * scale; }),
            gather_for(options));
      });
}

}  // namespace hora
