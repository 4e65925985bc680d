#include "tests/gpu/collectives/values.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/seed.h"

namespace hora::internal::test {

Bytes random_values(DataType type, std::int64_t count, std::uint64_t salt) {
  auto random = generator(salt + 1);
  return random_values(type, static_cast<std::size_t>(count) * size_of(type), random);
}

double tolerance(DataType type, int ranks) {
  return 2.0 * (ranks + 1) * ranks * unit_roundoff(type);
}

void expect_close(int ranks, DataType type, const Bytes& result, const Bytes& expected,
                  const std::string& what) {
  ASSERT_EQ(result.size(), expected.size());
  if (!is_floating_point(type)) {
    EXPECT_EQ(result, expected) << what;
    return;
  }
  for (std::size_t i = 0; i < result.size() / size_of(type); ++i) {
    const double difference = std::abs(number_at(type, result, i) - number_at(type, expected, i));
    ASSERT_LE(difference, tolerance(type, ranks)) << what << ", element " << i;
  }
}

}  // namespace hora::internal::test
