#include "frameworks/torch/optimizer/update_counts.h"

#include <gtest/gtest.h>
#include <hora/hora.h>

#include "frameworks/torch/peers.h"

namespace hora::internal::test {
namespace {

TEST(UpdateCounts, TellWhenAllRanksHaveNotedABucket) {
  const Context world = init();
  if (world.cross_size() != 1) GTEST_SKIP() << "for ranks that share memory";
  UpdateCounts counts(peers_of(world, kWorld), "counts", 2);
  for (int round = 0; round < 3; ++round) {
    for (int late = 0; late < world.size(); ++late) {
      if (world.rank() != late) counts.note(1);
      barrier(world);
      if (world.rank() != late) {
        EXPECT_FALSE(counts.noted_by_all(1)) << "rank " << late << " has not";
      }
      EXPECT_TRUE(counts.noted_by_all(0)) << "nobody has begun it";
      barrier(world);
      if (world.rank() == late) counts.note(1);
      barrier(world);
      EXPECT_TRUE(counts.noted_by_all(1));
      barrier(world);
    }
  }
}

}  // namespace
}  // namespace hora::internal::test
