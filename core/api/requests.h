/// What users ask for, checked and as the engine takes it.
#pragma once

#include <hora/collectives.h>
#include <hora/context.h>

#include "core/engine/submission.h"

namespace hora {

/// All throw what collectives.h says of submitting calls.
Request request(const Context& context, const TensorView& tensor, const AllreduceOptions& options);
Request request(const Context& context, const TensorView& tensor, const BroadcastOptions& options);
Request request(const Context& context, const BarrierOptions& options);
Request request(const Context& context, const TensorView& tensor, const AllgatherOptions& options);
Request request(const Context& context, const TensorView& tensor, const AlltoallOptions& options);
Request request(const Context& context, const TensorView& tensor,
                const ReduceScatterOptions& options);

/// Throws Error(invalid_argument) for a tensor on a device in another process set than the world,
/// which has no data path for it. Exchanges have one, by way of host memory.
void check_path(const Request& request, ProcessSet set);

}  // namespace hora
