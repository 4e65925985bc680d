/// How the nodes' parts of a result become one.
#pragma once

#include <hora/types.h>

namespace hora {

/// Elements of `type` are taken together in node order, and the result is multiplied by `scale`
/// (floating-point types; skipped where it is 1).
struct Reduction {
  DataType type = DataType::float32;
  ReduceOp op = ReduceOp::sum;
  double scale = 1.0;
};

}  // namespace hora
