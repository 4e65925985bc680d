/// A tensor that an optimizer steps as one parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace hora::internal {

struct OptimizerPiece {
  std::string name;        ///< of the parameter
  at::Tensor whole;        ///< the parameter
  at::Tensor stepped;      ///< in the optimizer's group: the parameter, or elements of it
  std::int64_t begin = 0;  ///< the first of them, in the parameter's memory order

  bool is_whole() const { return stepped.is_same(whole); }
};

}  // namespace hora::internal
