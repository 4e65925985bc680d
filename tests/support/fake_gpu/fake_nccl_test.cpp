// Collectives of the fake NCCL, 1 to 4 ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "ops/cuda/stream.h"
#include "tests/support/fake_gpu/nccl_rank.h"

namespace hora::internal::test {
namespace {

using testing::Each;
using testing::IsEmpty;

class FakeNcclTest : public testing::TestWithParam<int> {
 protected:
  void run(const std::function<void(NcclRank&, int)>& body) {
    ranks_.run([&](int number) {
      NcclRank rank(ranks_, number);
      body(rank, number);
      rank.finish();
      rank.communicator.close(far_away());
    });
    EXPECT_THAT(ranks_.world.errors(), IsEmpty());
    for (int rank = 0; rank < GetParam(); ++rank) {
      EXPECT_EQ(ranks_.gpu(rank).live(), LiveHandles{});
      EXPECT_THAT(ranks_.gpu(rank).violations(), IsEmpty());
    }
  }
  Ranks ranks_{GetParam(), with_delays()};
};
INSTANTIATE_TEST_SUITE_P(Sizes, FakeNcclTest, testing::Values(1, 2, 3, 4));

TEST_P(FakeNcclTest, GroupsAreEnqueuedAfterTheirEnd) {
  const int size = GetParam();
  if (size == 1) return;  // at once, each by itself
  run([&](NcclRank& rank, int) {
    std::fill_n(rank.values(), 3, 1.0F);
    ASSERT_EQ(rank.nccl.group_start(), ncclSuccess);
    for (int i = 0; i < 3; ++i) {
      float* const value = rank.values() + i;
      ASSERT_EQ(rank.nccl.all_reduce(value, value, 1, ncclFloat32, ncclSum, rank.communicator.get(),
                                     rank.stream.get()),
                ncclSuccess);
    }
    ASSERT_EQ(rank.gpu.cuda().stream_synchronize(rank.stream.get()), cudaSuccess);
    EXPECT_FLOAT_EQ(rank.values()[0], 1) << "nothing is on the stream yet";
    ASSERT_EQ(rank.nccl.group_end(), ncclInProgress);
    rank.finish();
    EXPECT_THAT(std::vector(rank.values(), rank.values() + 3), Each(static_cast<float>(size)));
  });
}

TEST_P(FakeNcclTest, EveryCollectiveIsPutOnItsStreamLater) {
  const int size = GetParam();
  run([&](NcclRank& rank, int) {
    for (int step = 0; step < 3; ++step) {
      rank.gpu.hold_launches();
      rank.values()[0] = 1;
      ASSERT_EQ(rank.all_reduce(1), size == 1 ? ncclSuccess : ncclInProgress);
      Event too_early(rank.gpu.cuda());
      too_early.record(rank.stream.get());
      too_early.synchronize();
      if (size > 1) {
        EXPECT_EQ(rank.all_reduce(1), ncclInvalidArgument) << "not before the first is enqueued";
        EXPECT_FLOAT_EQ(rank.values()[0], 1);
        EXPECT_FALSE(rank.communicator.ready());
      }
      rank.gpu.resume_launches();
      rank.finish();
      EXPECT_FLOAT_EQ(rank.values()[0], static_cast<float>(size));
    }
  });
}

}  // namespace
}  // namespace hora::internal::test
