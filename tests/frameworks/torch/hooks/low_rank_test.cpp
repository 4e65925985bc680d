#include "frameworks/torch/hooks/low_rank.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/seed.h"

namespace hora::internal {
namespace {

TEST(LowRank, TheFirstDimensionIsTheRows) {
  EXPECT_EQ(matrix_extents({8, 3, 5, 5}).rows, 8);
  EXPECT_EQ(matrix_extents({8, 3, 5, 5}).columns, 75);
  EXPECT_EQ(matrix_extents({9}).rows, 1);
  EXPECT_EQ(matrix_extents({}).columns, 1);
}

TEST(LowRank, SmallMatricesAreNotWorthIt) {
  EXPECT_FALSE(worth_factoring(1, 1000, 1));
  EXPECT_FALSE(worth_factoring(4, 4, 2));
  EXPECT_TRUE(worth_factoring(64, 576, 4));
}

TEST(LowRank, RandomMatricesFollowTheirSeed) {
  EXPECT_TRUE(torch::equal(random_matrix(3, 40, 7), random_matrix(3, 40, 7)));
  EXPECT_FALSE(torch::equal(random_matrix(3, 40, 7), random_matrix(3, 40, 8)));
}

TEST(LowRank, RowsBecomeOrthonormal) {
  at::Tensor matrix = random_matrix(6, 50, test::seed());
  matrix[3].add_(matrix[2], 1000.0);  // nearly parallel
  orthogonalise_rows(matrix);
  EXPECT_TRUE(torch::allclose(torch::matmul(matrix, matrix.t()), torch::eye(6), 1e-5, 1e-5));
}

TEST(LowRank, ADependentRowBecomesZero) {
  at::Tensor matrix = random_matrix(4, 50, test::seed());
  matrix[1].zero_();
  matrix[2].copy_(matrix[0] * 3.0);
  orthogonalise_rows(matrix);
  EXPECT_EQ(matrix[1].norm().item<float>(), 0.0F);
  EXPECT_EQ(matrix[2].norm().item<float>(), 0.0F);
  EXPECT_NEAR(matrix[3].norm().item<double>(), 1.0, 1e-5);
}

}  // namespace
}  // namespace hora::internal
