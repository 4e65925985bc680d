#include "ops/nccl/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <type_traits>
#include <utility>

#include "ops/cuda/memory.h"
#include "ops/cuda/stream.h"
#include "tests/support/fake_gpu/ranks.h"

namespace hora::internal {
namespace {

using test::far_away;
using test::in_milliseconds;
using test::LiveHandles;
using test::Ranks;

static_assert(!std::is_copy_constructible_v<NcclCommunicator>);
static_assert(std::is_nothrow_move_constructible_v<NcclCommunicator>);
static_assert(std::is_nothrow_move_assignable_v<NcclCommunicator>);

TEST(NcclWait, SpinsBeforeItSleeps) {
  using std::chrono::microseconds;
  EXPECT_EQ(pause_between_looks(microseconds(0)), microseconds(0));
  EXPECT_EQ(pause_between_looks(microseconds(99)), microseconds(0));
  EXPECT_EQ(pause_between_looks(microseconds(160)), microseconds(20));
  EXPECT_EQ(pause_between_looks(microseconds(8000)), microseconds(1000));
  EXPECT_EQ(pause_between_looks(std::chrono::seconds(60)), microseconds(1000));
}

/// Looks that spin_until() takes where each costs 30 us and the condition holds at the `true_at`th.
struct Spin {
  explicit Spin(int true_at) {
    std::chrono::nanoseconds time = std::chrono::hours(5);
    found = spin_until(
        [&] {
          time += std::chrono::microseconds(30);
          return ++looks == true_at;
        },
        [&] { return time; });
  }
  bool found = false;
  int looks = 0;
};

TEST(NcclWait, SpinEndsWithTheConditionOrWhenAPauseIsDue) {
  const Spin at_once(1);
  EXPECT_TRUE(at_once.found);
  EXPECT_EQ(at_once.looks, 1);
  const Spin soon(3);
  EXPECT_TRUE(soon.found);
  EXPECT_EQ(soon.looks, 3);
  const Spin never(0);
  EXPECT_FALSE(never.found);
  EXPECT_EQ(never.looks, 4);  // 120 us have gone
}

TEST(NcclCommunicatorTest, IsReadyWhenAllHaveCome) {
  for (int size = 1; size <= 4; ++size) {
    Ranks ranks(size);
    ranks.run([&](int rank) {
      NcclCommunicator communicator = ranks.communicator(rank);
      communicator.wait_ready(far_away());
      EXPECT_TRUE(communicator.ready());
      EXPECT_NO_THROW(communicator.check_async());
      communicator.close(far_away());
      EXPECT_EQ(communicator.get(), nullptr);
      communicator.close(far_away());
      EXPECT_EQ(ranks.gpu(rank).live(), LiveHandles{});
      EXPECT_EQ(ranks.gpu(rank).nccl_count("comm_abort"), 0);
    });
    EXPECT_THAT(ranks.world.errors(), testing::IsEmpty());
  }
}

TEST(NcclCommunicatorTest, DoesNotWaitForRanksThatDoNotCome) {
  Ranks ranks(2);
  {
    const NcclCommunicator communicator = ranks.communicator(0);
    for (int poll = 0; poll < 100; ++poll) {
      EXPECT_FALSE(communicator.ready());
    }
    EXPECT_THROW(communicator.wait_ready(in_milliseconds(5)), Error);
  }
  EXPECT_EQ(ranks.gpu(0).live(), LiveHandles{});
}

TEST(NcclCommunicatorTest, IsGivenTheMostThreadBlocksWhereTheyAreSet) {
  for (const int most : {0, 8}) {
    Ranks ranks(1);
    NcclFunctions nccl = ranks.gpu(0).nccl();
    int given = -1;
    nccl.comm_init_rank_config = [&, begin = nccl.comm_init_rank_config](
                                     ncclComm_t* comm, int size, const ncclUniqueId& id, int rank,
                                     ncclConfig_t* config) {
      given = config->maxCTAs;
      return begin(comm, size, id, rank, config);
    };
    const NcclCommunicator communicator(nccl, ranks.id, 1, 0, most);
    const ncclConfig_t unchanged = NCCL_CONFIG_INITIALIZER;
    EXPECT_EQ(given, most > 0 ? most : unchanged.maxCTAs);
  }
}

TEST(NcclCommunicatorTest, FailureAtOnceLeavesNothing) {
  Ranks ranks(1);
  ranks.gpu(0).nccl_fail("comm_init_rank_config", 1, ncclSystemError);
  EXPECT_THROW(ranks.communicator(0), Error);
  EXPECT_EQ(ranks.gpu(0).live(), LiveHandles{});
}

TEST(NcclCommunicatorTest, FailureInTheBackgroundIsThrownByPolling) {
  Ranks ranks(1);
  ranks.gpu(0).nccl_fail("initialisation", 1, ncclSystemError);
  {
    const NcclCommunicator communicator = ranks.communicator(0);
    EXPECT_THROW(communicator.wait_ready(far_away()), Error);
    EXPECT_THROW(communicator.check_async(), Error);
  }
  EXPECT_EQ(ranks.gpu(0).live(), LiveHandles{});
}

TEST(NcclCommunicatorTest, AFailingPollIsThrown) {
  Ranks ranks(1);
  const NcclCommunicator communicator = ranks.communicator(0);
  ranks.gpu(0).nccl_fail("comm_get_async_error", 1, ncclInternalError);
  EXPECT_THROW(communicator.ready(), Error);
}

TEST(NcclCommunicatorTest, MovesAndAbortsOnce) {
  Ranks ranks(1);
  {
    NcclCommunicator first = ranks.communicator(0);
    const ncclComm_t handle = first.get();
    NcclCommunicator second = std::move(first);
    EXPECT_EQ(second.get(), handle);
    NcclCommunicator third;
    third = std::move(second);
    third.abort();
    third.abort();
    EXPECT_EQ(third.get(), nullptr);
    EXPECT_THROW(third.ready(), Error);
  }
  EXPECT_EQ(ranks.gpu(0).nccl_count("comm_abort"), 1);
  EXPECT_THAT(ranks.world.errors(), testing::IsEmpty());
}

TEST(NcclCommunicatorTest, CloseHasADeadline) {
  Ranks ranks(2);
  ranks.run([&](int rank) {
    NcclCommunicator communicator = ranks.communicator(rank);
    communicator.wait_ready(far_away());
    if (rank == 0) {
      EXPECT_THROW(communicator.close(in_milliseconds(20)), Error);
      EXPECT_EQ(communicator.get(), nullptr);
      EXPECT_EQ(ranks.gpu(0).nccl_count("comm_abort"), 1);
    }
  });
  EXPECT_EQ(ranks.gpu(0).live(), LiveHandles{});
  EXPECT_EQ(ranks.gpu(1).live(), LiveHandles{});
}

TEST(NcclCommunicatorTest, FailuresOfCloseLeaveNothing) {
  for (const char* call : {"comm_finalize", "comm_destroy"}) {
    Ranks ranks(1);
    ranks.gpu(0).nccl_fail(call, 1, ncclSystemError);
    NcclCommunicator communicator = ranks.communicator(0);
    EXPECT_THROW(communicator.close(far_away()), Error) << call;
    EXPECT_EQ(ranks.gpu(0).live(), LiveHandles{}) << call;
  }
}

TEST(NcclCommunicatorTest, AbortFreesAStreamThatWaitsForAPeer) {
  Ranks ranks(2);
  ranks.run([&](int rank) {
    test::FakeGpu& gpu = ranks.gpu(rank);
    const CudaStream stream(gpu.cuda(), 0);
    const DeviceMemory memory(gpu.cuda(), 40);
    NcclCommunicator communicator = ranks.communicator(rank);
    communicator.wait_ready(far_away());
    if (rank == 0) {
      // Rank 1 never comes.
      EXPECT_EQ(gpu.nccl().all_reduce(memory.data(), memory.data(), 10, ncclFloat32, ncclSum,
                                      communicator.get(), stream.get()),
                ncclInProgress);
      communicator.wait_ready(far_away());
      EXPECT_THROW(communicator.close(in_milliseconds(20)), Error);
      EXPECT_EQ(gpu.cuda().stream_synchronize(stream.get()), cudaSuccess);
    }
  });
}

TEST(NcclCommunicatorTest, AnAsynchronousErrorIsThrown) {
  Ranks ranks(1);
  NcclCommunicator communicator = ranks.communicator(0);
  communicator.wait_ready(far_away());
  ranks.gpu(0).async_error(ncclRemoteError);
  EXPECT_THROW(communicator.check_async(), Error);
  EXPECT_THROW(communicator.close(far_away()), Error);
  EXPECT_EQ(ranks.gpu(0).live(), LiveHandles{});
}

}  // namespace
}  // namespace hora::internal
