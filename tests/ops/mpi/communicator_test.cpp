#include "ops/mpi/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <limits>
#include <utility>

#include "ops/mpi/check.h"

namespace hora::internal {
namespace {

TEST(Communicator, WorldHasMpisRanks) {
  const Communicator world = Communicator::world();
  int rank = -1;
  int size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  EXPECT_EQ(world.rank(), rank);
  EXPECT_EQ(world.size(), size);
  EXPECT_FALSE(world.empty());
  EXPECT_NE(world.get(), MPI_COMM_WORLD);
}

TEST(Communicator, MovesItsOwnership) {
  Communicator first = Communicator::world();
  const MPI_Comm handle = first.get();
  Communicator second = std::move(first);
  EXPECT_TRUE(first.empty());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(second.get(), handle);
  first = second.duplicate();
  EXPECT_NE(first.get(), second.get());
  second = std::move(first);
  mpi_check(MPI_Barrier(second.get()), "MPI_Barrier");
}

TEST(Communicator, SplitsByColorAndKey) {
  const Communicator world = Communicator::world();
  const Communicator reversed = world.split(0, -world.rank());
  EXPECT_EQ(reversed.rank(), world.size() - 1 - world.rank());

  const Communicator odd = world.split(world.rank() % 2 == 1 ? 5 : -1, 0);
  EXPECT_EQ(odd.empty(), world.rank() % 2 == 0);
  EXPECT_EQ(odd.size(), world.rank() % 2 == 0 ? 0 : world.size() / 2);
}

TEST(Communicator, AllRanksOfThisTestShareMemory) {
  EXPECT_EQ(Communicator::world().split_by_shared_memory().size(), Communicator::world().size());
}

TEST(MpiCheck, ErrorsAreReturnedAndNamed) {
  const Communicator world = Communicator::world();
  const int no_rank = world.size();
  try {
    const int value = 0;
    mpi_check(MPI_Send(&value, 1, MPI_INT, no_rank, 0, world.get()), "MPI_Send to", no_rank);
    FAIL() << "sending to rank " << no_rank << " succeeded";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::transport);
    EXPECT_EQ(error.rank(), no_rank);
    EXPECT_THAT(error.what(), testing::HasSubstr("MPI_Send to rank " + std::to_string(no_rank)));
    EXPECT_THAT(error.what(), testing::AnyOf(testing::HasSubstr("MPI_ERR_RANK"),    // Open MPI
                                             testing::HasSubstr("Invalid rank")));  // MPICH
  }
}

TEST(MpiCheck, CountsAreNarrowedOnlyWhereTheyFit) {
  constexpr std::size_t limit = std::numeric_limits<int>::max();
  EXPECT_EQ(mpi_count(limit, "it"), std::numeric_limits<int>::max());
  EXPECT_THROW(mpi_count(limit + 1, "it"), Error);
}

}  // namespace
}  // namespace hora::internal
