#include "tests/ops/nccl/gpu_program.h"

#include <cstdint>
#include <utility>

#include "tests/support/reference/elements.h"
#include "tests/support/reference/reference.h"

namespace hora::test {

std::vector<Step> random_program(int ranks, int nodes, std::size_t steps, std::mt19937_64& random) {
  std::vector<Step> program;
  for (std::size_t i = 0; i < steps; ++i) {
    Step step;
    step.kind = random() % 4 == 0 ? OperationKind::broadcast : OperationKind::allreduce;
    step.type = kAllTypes[random() % kAllTypes.size()];
    // The average of 4 ranks' whole numbers is exact as well, and so are scales of powers of two.
    const bool averages = is_floating_point(step.type) && (ranks & (ranks - 1)) == 0;
    step.op = ReduceOp::sum;
    if (step.kind == OperationKind::allreduce) {
      step.op = averages && random() % 3 == 0 ? ReduceOp::average : kElementOps[random() % 4];
      // Between nodes the thread world has none.
      if (nodes == 1 && is_floating_point(step.type) && random() % 6 == 0) {
        step.op = ReduceOp::adasum;
      }
      if (is_floating_point(step.type) && step.op != ReduceOp::adasum && random() % 2 == 0) {
        step.prescale = random() % 2 == 0 ? -0.5 : 2.0;
        step.postscale = random() % 2 == 0 ? 1.0 : 0.25;
      }
    }
    step.root = static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
    const auto count =
        static_cast<std::int64_t>(random() % 8 == 0 ? random() % 3 : random() % 6000);
    for (int rank = 0; rank < ranks; ++rank) {
      const int below = step.op == ReduceOp::product ? 4 : 12;
      step.values.push_back(whole_numbers(step.type, count, random, below));
    }
    program.push_back(std::move(step));
  }
  return program;
}

}  // namespace hora::test
