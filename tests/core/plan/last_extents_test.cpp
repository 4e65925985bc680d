#include <gtest/gtest.h>

#include <numeric>

#include "core/plan/plan.h"

namespace hora::internal {
namespace {

using Extents = std::vector<std::int64_t>;

TEST(LastExtents, AreUnknownAtFirst) {
  const LastExtents last;
  EXPECT_FALSE(last.known());
  EXPECT_FALSE(last.are(0, Extents{0}));
  EXPECT_FALSE(last.are(0, Extents{})) << "none are not those of any rank";
}

TEST(LastExtents, AreThoseOfEachRank) {
  LastExtents last;
  const auto all = last.renew(2, 3);
  std::iota(all.begin(), all.end(), 10);
  last.end_run();
  EXPECT_TRUE(last.known());
  EXPECT_TRUE(last.are(0, Extents{10, 11}));
  EXPECT_TRUE(last.are(2, Extents{14, 15}));
  EXPECT_FALSE(last.are(1, Extents{10, 11}));
  EXPECT_FALSE(last.are(0, Extents{10}));
  EXPECT_FALSE(last.are(0, Extents{10, 12}));
  last.renew(2, 3)[1] = 12;
  EXPECT_TRUE(last.are(0, Extents{10, 12}));
}

TEST(LastExtents, TooManyAreForgotten) {
  LastExtents last;
  last.renew(1, LastExtents::kMostKept);
  last.end_run();
  EXPECT_TRUE(last.known());
  last.renew(1, LastExtents::kMostKept + 1).back() = 7;
  EXPECT_EQ(last.of(static_cast<int>(LastExtents::kMostKept))[0], 7) << "until the run has ended";
  last.end_run();
  EXPECT_FALSE(last.known());
  EXPECT_FALSE(last.are(0, Extents{0}));
}

}  // namespace
}  // namespace hora::internal
