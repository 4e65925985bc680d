// Run by harness.sh, alone and under mpirun: the last of two ranks fails, or skips, alone.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

namespace {

/// As mpirun numbers it; alone it is the last one.
bool is_last_rank() {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const char* rank = std::getenv(name)) return std::string_view(rank) == "1";
  }
  return true;
}

}  // namespace

TEST(Harness, Passes) {}

TEST(Harness, Fails) {
  EXPECT_FALSE(is_last_rank()) << "as it should";
}

TEST(Harness, Skipped) {
  GTEST_SKIP();
}

TEST(Harness, SkippedOnOneRank) {
  if (is_last_rank()) GTEST_SKIP();
}
