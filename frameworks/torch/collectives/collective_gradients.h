/// The rules by which gradients of collectives are made (torch_collectives.h), for one tensor and
/// for groups alike.
#pragma once

#include <hora/torch_collectives.h>

#include <cstdint>
#include <vector>

namespace hora {

/// Throws Error(invalid_argument) for reductions other than sum and average.
void check_has_gradient(const AllreduceOptions& options);
void check_has_gradient(const ReduceScatterOptions& options);

/// The backward collectives' options.
AllreduceOptions sum_for(const BroadcastOptions& options);
AllreduceOptions average_for(const AllgatherOptions& options);
AllgatherOptions gather_for(const ReduceScatterOptions& options);

/// `gradient` at the root, zeros elsewhere.
torch::Tensor at_root(const Context& context, const torch::Tensor& gradient,
                      const BroadcastOptions& options);

/// Where this rank's rows lie in what an allgather gave, and the shape they had.
struct MyRows {
  std::int64_t first = 0;
  std::int64_t count = 0;
  std::vector<std::int64_t> shape;
};
MyRows my_rows(const Context& context, const AllgatherOptions& options,
               const std::vector<std::int64_t>& rows, const torch::Tensor& mine);
torch::Tensor rows_of(const torch::Tensor& gathered, const MyRows& mine);

/// What a reduce_scatter's gradients are multiplied by before they are gathered.
double gather_scale(const Context& context, const ReduceScatterOptions& options);

}  // namespace hora
