#include "ops/mpi/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <limits>
#include <string>
#include <utility>

#include "tests/support/expect_error.h"

namespace hora::internal {
namespace {
TEST(Communicator, MovesItsOwnership) {
  Communicator first = Communicator::world();
  const MPI_Comm handle = first.get();
  Communicator second = std::move(first);
  EXPECT_EQ(first.get(), MPI_COMM_NULL);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(second.get(), handle);
  first = Communicator::world();
  EXPECT_NE(first.get(), second.get());
  second = std::move(first);
  mpi_check(MPI_Barrier(second.get()), "MPI_Barrier");
}

TEST(MpiCheck, ErrorsAreNamedAndCountsNarrowedWhereTheyFit) {
  const Communicator world = Communicator::world();
  const int no_rank = world.size();
  const Error error = test::expect_error(
      ErrorCode::transport,
      testing::AllOf(testing::HasSubstr("MPI_Send to rank " + std::to_string(no_rank)),
                     testing::AnyOf(testing::HasSubstr("MPI_ERR_RANK"),    // Open MPI
                                    testing::HasSubstr("Invalid rank"))),  // MPICH
      [&] {
        mpi_check(MPI_Send(&no_rank, 1, MPI_INT, no_rank, 0, world.get()), "MPI_Send to", no_rank);
      });
  EXPECT_EQ(error.rank(), no_rank);
  constexpr std::size_t limit = std::numeric_limits<int>::max();
  EXPECT_EQ(mpi_count(limit, "it"), std::numeric_limits<int>::max());
  EXPECT_THROW(mpi_count(limit + 1, "it"), Error);
}

std::vector<std::byte> bytes_of(std::size_t length, int value) {
  return std::vector<std::byte>(length, static_cast<std::byte>(value));
}

TEST(MpiBootstrap, AllGatherKeepsLengthsAndOrderAndAllRanksOfThisTestAreOnOneHost) {
  MpiBootstrap world(Communicator::world());
  // Rank 0 gives nothing at all.
  const auto own = bytes_of(static_cast<std::size_t>(world.rank()) * 1000, world.rank());
  const auto parts = world.all_gather(own);
  ASSERT_EQ(parts.size(), static_cast<std::size_t>(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    EXPECT_EQ(parts[at], bytes_of(at * 1000, rank));
  }
  const auto host = world.of_host();
  EXPECT_EQ(host->rank(), world.rank());
  EXPECT_EQ(host->size(), world.size());
  host->barrier();
}

}  // namespace
}  // namespace hora::internal
