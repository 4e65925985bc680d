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

std::vector<std::byte> bytes_of(std::size_t length, int value) {
  return std::vector<std::byte>(length, static_cast<std::byte>(value));
}

TEST(MpiBootstrap, AllGatherKeepsLengthsAndOrder) {
  MpiBootstrap world(Communicator::world());
  // Rank 0 gives nothing at all.
  const auto own = bytes_of(static_cast<std::size_t>(world.rank()) * 1000, world.rank());
  const auto parts = world.all_gather(own);
  ASSERT_EQ(parts.size(), static_cast<std::size_t>(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) {
    EXPECT_EQ(parts[static_cast<std::size_t>(rank)],
              bytes_of(static_cast<std::size_t>(rank) * 1000, rank));
  }
}

TEST(MpiBootstrap, BroadcastGivesTheRootsBytes) {
  MpiBootstrap world(Communicator::world());
  for (int root = 0; root < world.size(); ++root) {
    for (const std::size_t length : {0, 1, 100000}) {
      const auto own = bytes_of(world.rank() == root ? length : 3, world.rank());
      EXPECT_EQ(world.broadcast(own, root), bytes_of(length, root));
    }
  }
}

TEST(MpiBootstrap, AllRanksOfThisTestAreOnOneHost) {
  MpiBootstrap world(Communicator::world());
  const auto host = world.of_host();
  EXPECT_EQ(host->rank(), world.rank());
  EXPECT_EQ(host->size(), world.size());
  host->barrier();
}

TEST(MpiBootstrap, TextsAreGathered) {
  MpiBootstrap world(Communicator::world());
  const auto texts = gather_texts(world, "rank " + std::to_string(world.rank()));
  ASSERT_EQ(texts.size(), static_cast<std::size_t>(world.size()));
  for (int rank = 0; rank < world.size(); ++rank) {
    EXPECT_EQ(texts[static_cast<std::size_t>(rank)], "rank " + std::to_string(rank));
  }
  const int last = world.size() - 1;
  EXPECT_EQ(broadcast_text(world, std::to_string(world.rank()), last), std::to_string(last));
}

}  // namespace

}  // namespace hora::internal
