#include "core/checked.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/seed.h"

namespace hora {
namespace {

constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();

TEST(Checked, CountsWhatFits) {
  EXPECT_EQ((Checked(3) * 4 + 5).value(), 17u);
  EXPECT_TRUE((Checked(3) * 4).at_most(12));
  EXPECT_FALSE((Checked(3) * 4).at_most(11));
  EXPECT_TRUE((Checked(kAll) + 0).at_most(kAll));
  EXPECT_TRUE((Checked(std::uint64_t{1} << 32) * 0).at_most(0));
}

TEST(Checked, WhatDoesNotFitIsNoCountEverAfter) {
  EXPECT_FALSE((Checked(kAll) + 1).at_most(kAll));
  EXPECT_FALSE((Checked(std::uint64_t{1} << 32) * (std::uint64_t{1} << 32)).at_most(kAll));
  EXPECT_FALSE((Checked(kAll) * 2 * 0).at_most(kAll));
  EXPECT_FALSE((Checked(1) + (Checked(kAll) + 1)).at_most(kAll));
  EXPECT_FALSE(Checked(-1).at_most(kAll));
  EXPECT_FALSE((Checked(std::int64_t{-1}) * 0 + 1).at_most(kAll));
}

TEST(Checked, AsWideArithmetic) {
  auto random = test::generator();
  for (int i = 0; i < 20000; ++i) {
    const auto any = [&] { return static_cast<std::uint64_t>(random()) >> (random() % 64); };
    const std::uint64_t a = any();
    const std::uint64_t b = any();
    const std::uint64_t c = any();
    const auto wide = static_cast<long double>(a) * static_cast<long double>(b) +
                      static_cast<long double>(c);  // 64 bits of mantissa
    const Checked narrow = Checked(a) * b + c;
    if (wide < 0x1p63L) {
      ASSERT_TRUE(narrow.at_most(kAll)) << a << " " << b << " " << c;
      ASSERT_EQ(narrow.value(), a * b + c);
    } else if (wide > 0x1p65L) {
      ASSERT_FALSE(narrow.at_most(kAll)) << a << " " << b << " " << c;
    }
  }
}

}  // namespace
}  // namespace hora
