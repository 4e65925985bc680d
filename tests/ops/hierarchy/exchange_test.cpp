// Parts of an exchange alone. That the bytes arrive: exchange_run_test.
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>

#include "ops/hierarchy/exchange_run.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

TEST(ExchangeSizes, WhatRepeatsIsKnown) {
  const Topology topology{{{0}, {1}}};
  const std::vector<std::int64_t> rows{5};
  BoundUnit unit;
  unit.exchange.last = std::make_shared<LastExtents>();
  unit.unit.kind = OperationKind::allgather;
  unit.exchange.rows.push_back(rows);
  unit.exchange.repeats = true;
  EXPECT_THROW(ExchangeSizes(unit, topology, 0), Error);
}

// Lengths on both sides of where copies begin to go past the caches, at odd offsets.
TEST(ExchangeTarget, CopiesIntoShortAndLongResultsAlike) {
  std::mt19937_64 random = test::generator();
  for (const std::size_t length : {std::size_t{1} << 20, std::size_t{9} << 20}) {
    const test::Bytes in = test::random_values(DataType::uint8, length - 12, random);
    test::Bytes result(length, std::byte{1});
    ExchangeTarget(result.data(), length).copy(5, in.data(), in.size());
    EXPECT_TRUE(std::equal(in.begin(), in.end(), result.begin() + 5));
    EXPECT_EQ(std::count(result.begin(), result.begin() + 5, std::byte{1}), 5);
    EXPECT_EQ(std::count(result.end() - 7, result.end(), std::byte{1}), 7);
  }
}

}  // namespace
}  // namespace hora::internal
