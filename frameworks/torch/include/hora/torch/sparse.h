/// Allreduce of sparse tensors (COO), such as the gradients of embeddings.
///
///     torch::Tensor sum = hora::sparse_allreduce(world, embedding->weight.grad(),
///                                                {.name = "rows", .op = hora::ReduceOp::sum});
#pragma once

#include <hora/export.h>
#include <hora/torch/collectives.h>

namespace HORA_EXPORT hora {

/// Returns the sum or average of all ranks' tensors, coalesced, added in the type of the values.
/// Indices and values are gathered: memory and time grow with the ranks. Errors: collectives.h;
/// besides, Error(invalid_argument) for dense tensors and other reductions, the same
/// Error(mismatch) on every rank where sizes differ. Autograd does not see it. Thread rule: any
/// thread.
torch::Tensor sparse_allreduce(const Context& context, const torch::Tensor& tensor,
                               const AllreduceOptions& options = {});
[[nodiscard]] TensorHandle sparse_allreduce_async(const Context& context,
                                                  const torch::Tensor& tensor,
                                                  const AllreduceOptions& options = {});

}  // namespace hora
