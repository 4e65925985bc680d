/// In place of a header of LibTorch 1.13 that its reducer.hpp includes and Debian's package leaves
/// out: the two names that reducer.hpp needs. The class itself stays inside the library.
#pragma once

#include <torch/types.h>

#include <functional>
#include <memory>

namespace torch::distributed::autograd {

class DistAutogradContext {
 public:
  using GradCallback = std::function<bool(torch::Tensor&)>;
};
using ContextPtr = std::shared_ptr<DistAutogradContext>;

}  // namespace torch::distributed::autograd
