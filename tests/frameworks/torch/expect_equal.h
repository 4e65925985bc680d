/// Lists of tensors, compared.
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstddef>
#include <vector>

namespace hora::internal::test {

/// Expects the same types and, element by element, bits.
inline void expect_equal(const std::vector<torch::Tensor>& actual,
                         const std::vector<torch::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type()) << i;
    EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
  }
}

}  // namespace hora::internal::test
