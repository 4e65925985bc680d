/// An allgather with the rows that came from each rank, which its gradient needs.
#pragma once

#include <hora/torch_collectives.h>

namespace hora {

AlltoallHandle allgather_rows_async(const Context& context, const torch::Tensor& tensor,
                                    const AllgatherOptions& options);

}  // namespace hora
