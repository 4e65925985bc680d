#include <gtest/gtest.h>

#include "ops/mpi/communicator.h"

namespace hora::internal {
namespace {

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
