/// The linear algebra of PowerSGD (power_sgd.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace hora::internal {

struct MatrixExtents {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// The first dimension by all others; one row for up to one dimension.
MatrixExtents matrix_extents(at::IntArrayRef shape);

/// Whether two factors of that rank have fewer elements than the matrix.
bool worth_factoring(std::int64_t rows, std::int64_t columns, int rank);

/// Draws from the normal distribution, float32, on the CPU; the same numbers for the same seed.
at::Tensor random_matrix(std::int64_t rows, std::int64_t columns, std::uint64_t seed);

/// Makes the rows orthonormal, one after the other, in place: Gram-Schmidt, each row twice (Giraud,
/// Langou, Rozloznik, "The loss of orthogonality in the Gram-Schmidt orthogonalization process",
/// 2005). A row that depends on those before it becomes zero.
void orthogonalise_rows(at::Tensor& matrix);

}  // namespace hora::internal
