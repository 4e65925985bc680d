#include "tests/gpu/collectives/values.h"

#include "tests/support/seed.h"

namespace hora::internal::test {

Bytes random_values(DataType type, std::int64_t count, std::uint64_t salt) {
  auto random = generator(salt + 1);
  return random_values(type, static_cast<std::size_t>(count) * size_of(type), random);
}

double tolerance(DataType type, int ranks) {
  return 2.0 * (ranks + 1) * ranks * unit_roundoff(type);
}

}  // namespace hora::internal::test
