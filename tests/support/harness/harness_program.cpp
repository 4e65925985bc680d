// Run by harness.sh: a test that passes, one that fails, one that is skipped.
#include <gtest/gtest.h>

TEST(Harness, Passes) {
  SUCCEED();
}

TEST(Harness, Fails) {
  FAIL() << "as it should";
}

TEST(Harness, Skipped) {
  GTEST_SKIP();
}
