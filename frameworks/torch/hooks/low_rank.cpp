#include "frameworks/torch/hooks/low_rank.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/accumulate.h>

#include <limits>

namespace hora::internal {

MatrixExtents matrix_extents(at::IntArrayRef shape) {
  if (shape.size() < 2) return {1, c10::multiply_integers(shape)};
  return {shape[0], c10::multiply_integers(shape.slice(1))};
}

bool worth_factoring(std::int64_t rows, std::int64_t columns, int rank) {
  return (rows + columns) * rank < rows * columns;
}

at::Tensor random_matrix(std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn({rows, columns}, generator, at::TensorOptions(at::kFloat));
}

void orthogonalise_rows(at::Tensor& matrix) {
  for (std::int64_t row = 0; row < matrix.size(0); ++row) {
    at::Tensor vector = matrix.select(0, row);
    const at::Tensor before = at::norm(vector);
    if (row > 0) {
      // Twice: what rounding leaves of the first time is as large as a nearly dependent row.
      for (int time = 0; time < 2; ++time) {
        const at::Tensor others = matrix.narrow(0, 0, row);
        vector.sub_(at::matmul(at::matmul(others, vector), others));
      }
    }
    const at::Tensor after = at::norm(vector);
    // Without a branch: on a GPU it would wait.
    const at::Tensor keep = after > before * std::numeric_limits<float>::epsilon() * 16;
    vector.mul_(at::where(keep, after.reciprocal(), at::zeros_like(after)));
  }
}

}  // namespace hora::internal
