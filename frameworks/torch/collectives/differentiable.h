/// Blocking collectives that autograd can differentiate.
#pragma once

#include "frameworks/torch/collectives/pending_tensors.h"

namespace hora::internal {

/// Grad mode is on, and an input requires a gradient.
bool is_recorded(at::TensorList inputs);

/// start_collective() out of place and its wait(), recorded where is_recorded(call.tensors): with
/// the gradients of collectives.h. A result that no loss uses has a gradient of zeros.
template <class Options>
TensorResults run_collective(const Context& context, const CallTensors& call,
                             const Options& options);

}  // namespace hora::internal
