/// The key of a parameter's state in LibTorch's optimizers.
#pragma once

#include <torch/optim/optimizer.h>

#include <sstream>
#include <type_traits>
#include <utility>

namespace hora::internal {

using OptimizerStates =
    std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer>().state())>;

/// Its address, in older versions as text.
template <class Key = OptimizerStates::key_type>
Key key_of(const at::Tensor& parameter) {
  if constexpr (std::is_pointer_v<Key>) {
    return parameter.unsafeGetTensorImpl();
  } else {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  }
}

}  // namespace hora::internal
