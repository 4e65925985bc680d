#include "frameworks/torch/optimizer/pass_counter.h"

#include <gtest/gtest.h>

namespace hora {
namespace {

TEST(PassCounter, TheLastPassCompletes) {
  PassCounter passes(2, 3);
  EXPECT_FALSE(passes.any());
  EXPECT_FALSE(passes.add(0, true));
  EXPECT_FALSE(passes.add(0, true));
  EXPECT_FALSE(passes.add(1, true));
  EXPECT_TRUE(passes.add(0, true));
  EXPECT_TRUE(passes.any());
}

TEST(PassCounter, UncountedPassesCompleteNothing) {
  PassCounter passes(1, 1);
  EXPECT_FALSE(passes.add(0, false));
  EXPECT_TRUE(passes.any());
  EXPECT_TRUE(passes.add(0, true));
}

TEST(PassCounter, ResetCountsFromTheStart) {
  PassCounter passes(1, 2);
  EXPECT_FALSE(passes.add(0, true));
  passes.reset();
  EXPECT_FALSE(passes.any());
  EXPECT_FALSE(passes.add(0, true));
  EXPECT_TRUE(passes.add(0, true));
}

}  // namespace
}  // namespace hora
