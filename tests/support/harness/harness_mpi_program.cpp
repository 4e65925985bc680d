// Run by harness.sh under mpirun: the last rank fails, or skips, alone.
#include <gtest/gtest.h>
#include <mpi.h>

#include "tests/support/seed.h"

namespace {

bool is_last_rank() {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return rank == size - 1;
}

}  // namespace

TEST(Harness, Passes) {
  const unsigned long long own = hora::internal::test::generator()();
  unsigned long long highest = 0;
  MPI_Allreduce(&own, &highest, 1, MPI_UNSIGNED_LONG_LONG, MPI_MAX, MPI_COMM_WORLD);
  EXPECT_EQ(own, highest) << "ranks draw different numbers";
}

TEST(Harness, Fails) {
  EXPECT_FALSE(is_last_rank()) << "as it should";
}

TEST(Harness, Skipped) {
  GTEST_SKIP();
}

TEST(Harness, SkippedOnOneRank) {
  if (is_last_rank()) {
    GTEST_SKIP();
  }
}
