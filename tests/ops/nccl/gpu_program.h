/// Random programs of collectives that give the same bytes on GPUs and in host memory.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

#include "tests/ops/nccl/gpu_world.h"

namespace hora::test {

/// One collective of a program that all ranks run.
struct Step {
  OperationKind kind;
  DataType type;
  ReduceOp op;
  int root;
  double prescale = 1.0;
  double postscale = 1.0;
  std::vector<std::vector<std::byte>> values = {};  ///< by rank

  Signature signature(const DeviceTensor& tensor) const {
    Signature result = tensor.signature(kind, op, root);
    result.prescale = prescale;
    result.postscale = postscale;
    return result;
  }
};

/// Values are whole numbers, few enough that every reduction is exact.
std::vector<Step> random_program(int ranks, int nodes, std::size_t steps, std::mt19937_64& random);

}  // namespace hora::test
