#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <vector>

#include "ops/local/kernels.h"
#include "tests/support/reference/elements.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

// Reducing anything with the identity element gives the thing itself: so says the kernel.
TEST(Neutral, ChangesNothing) {
  constexpr std::size_t kCount = 100;
  auto random = test::generator();
  for (const DataType type : test::kAllTypes) {
    for (const ReduceOp op : test::kElementOps) {
      std::vector<std::byte> values(kCount * size_of(type));
      // Of floating-point numbers small exponents: no NaN, whose bits a reduction may change.
      const unsigned below = is_floating_point(type) || type == DataType::boolean ? 2 : 256;
      for (std::byte& value : values) value = static_cast<std::byte>(random() % below);
      // And -0, whose sign a sum with 0 would change.
      std::fill_n(values.begin(), size_of(type), std::byte{0});
      if (is_floating_point(type)) values[size_of(type) - 1] = std::byte{0x80};
      std::vector<std::byte> neutral(values.size());
      fill_identity(type, op, neutral.data(), kCount);
      std::vector<std::byte> result(values.size());
      const std::array<const std::byte*, 2> inputs{values.data(), neutral.data()};
      std::byte* output = result.data();
      reduce(type, op, inputs, {&output, 1}, kCount, {});
      EXPECT_EQ(result, values) << name_of(type) << " " << name_of(op);
    }
  }
}

}  // namespace
}  // namespace hora::internal
