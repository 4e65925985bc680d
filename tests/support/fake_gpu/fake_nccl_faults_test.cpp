// Faults of the fake NCCL, by script or by misuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "core/engine/interfaces.h"
#include "ops/cuda/stream.h"
#include "tests/support/fake_gpu/nccl_rank.h"

namespace hora::internal::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(FakeNcclFaultTest, RanksThatDisagreeAllSeeIt) {
  const auto expect_error = [](const std::function<void(NcclRank&, int)>& body, const char* text) {
    Ranks ranks(3, with_delays());
    ranks.run([&](int number) {
      NcclRank rank(ranks, number);
      body(rank, number);
      try {
        while (true) rank.communicator.check_async();
      } catch (const std::exception& error) {
        EXPECT_THAT(error.what(), HasSubstr(text));
      }
      EXPECT_EQ(rank.gpu.cuda().stream_synchronize(rank.stream.get()), cudaSuccess);
    });
    EXPECT_THAT(ranks.world.errors(), ElementsAre(HasSubstr(text)));
  };
  expect_error([](NcclRank& rank, int number) { rank.all_reduce(number == 2 ? 4 : 5); },
               "rank 2: all_reduce of 4 float32, sum");
  expect_error(
      [](NcclRank& rank, int number) { rank.all_reduce(5, number == 1 ? ncclInt32 : ncclFloat32); },
      "rank 1: all_reduce of 5 int32, sum");
  expect_error([](NcclRank& rank,
                  int number) { rank.all_reduce(5, ncclFloat32, number == 1 ? ncclAvg : ncclSum); },
               "rank 1: all_reduce of 5 float32, average");
  expect_error(
      [](NcclRank& rank, int number) {
        if (number == 1) {
          rank.nccl.broadcast(rank.values(), rank.values(), 5, ncclFloat32, 0,
                              rank.communicator.get(), rank.stream.get());
        } else {
          rank.all_reduce(5);
        }
      },
      "rank 1: broadcast of 5 float32, root 0");
}

TEST(FakeNcclFaultTest, TransfersWhoseLengthsDifferAreSeen) {
  Ranks ranks(2);
  ranks.run([&](int number) {
    NcclRank rank(ranks, number);
    if (number == 0) {
      rank.nccl.send(rank.values(), 4, ncclUint8, 1, rank.communicator.get(), rank.stream.get());
    } else {
      rank.nccl.recv(rank.values(), 5, ncclUint8, 0, rank.communicator.get(), rank.stream.get());
    }
    EXPECT_THROW(while (true) rank.communicator.check_async(), std::exception);
  });
  EXPECT_THAT(ranks.world.errors(), ElementsAre(HasSubstr("send of 4 uint8, peer 1")));
}

TEST(FakeNcclFaultTest, PeersHangUntilTheyAbortToo) {
  Ranks ranks(3);
  ranks.run([&](int number) {
    NcclRank rank(ranks, number);
    Event event(rank.gpu.cuda());
    if (number != 0) {
      ASSERT_EQ(rank.all_reduce(5), ncclInProgress);
      rank.communicator.wait_ready(far_away());
      event.record(rank.stream.get());
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_FALSE(event.query());
      rank.gpu.async_error(rank.communicator.get(), ncclRemoteError);
      EXPECT_THROW(rank.communicator.check_async(), std::exception);
      EXPECT_FALSE(event.query());
    }
    rank.communicator.abort();
    event.synchronize();
  });
  EXPECT_THAT(ranks.world.errors(), IsEmpty());
}

TEST(FakeNcclFaultTest, ScriptedFailuresDropTheGroup) {
  Ranks ranks(1);
  NcclRank rank(ranks, 0);
  for (const char* call : {"all_reduce", "group_end"}) {
    rank.gpu.nccl_fail(call, 1, ncclSystemError);
    EXPECT_EQ(rank.nccl.group_start(), ncclSuccess);
    rank.all_reduce(1);
    EXPECT_EQ(rank.nccl.group_end(), ncclSystemError) << call;
  }
  EXPECT_EQ(rank.nccl.group_end(), ncclInvalidUsage) << "no group is open";
  EXPECT_EQ(rank.all_reduce(1), ncclSuccess);
  rank.finish();
  EXPECT_EQ(rank.gpu.nccl_count("all_reduce"), 3);
}

TEST(FakeNcclFaultTest, RefusesWhatIsNotItsOwn) {
  Ranks ranks(2);
  ranks.run([&](int number) {
    NcclRank rank(ranks, number);
    float host = 0;
    EXPECT_EQ(rank.nccl.all_reduce(&host, &host, 1, ncclFloat32, ncclSum, rank.communicator.get(),
                                   rank.stream.get()),
              ncclInvalidArgument);
    EXPECT_EQ(rank.all_reduce(1000), ncclInvalidArgument);
    EXPECT_EQ(rank.all_reduce(1, ncclInt32, ncclAvg), ncclInvalidArgument);
    EXPECT_EQ(rank.all_reduce(1, ncclFloat32, ncclNumOps), ncclInvalidArgument);
    EXPECT_EQ(rank.gpu.violations().size(), 2U);
    rank.communicator.close(far_away());
    EXPECT_EQ(rank.all_reduce(1), ncclInvalidArgument);
  });
}

TEST(FakeNcclFaultTest, FindsTwoThreadsInside) {
  Ranks ranks(1);
  // A blocking initialisation keeps the first thread inside, for rank 1 does not come.
  ncclComm_t comm = nullptr;
  std::thread waiting(
      [&] { ranks.gpu(0).nccl().comm_init_rank_config(&comm, 2, ranks.id, 0, nullptr); });
  while (ranks.gpu(0).live().communicators == 0) std::this_thread::yield();
  EXPECT_EQ(ranks.gpu(0).nccl().group_start(), ncclInvalidUsage);
  EXPECT_THAT(ranks.world.errors(), ElementsAre(HasSubstr("two threads")));
  FakeGpu peer(ranks.world);
  peer.choose();
  ncclComm_t other = nullptr;
  EXPECT_EQ(peer.nccl().comm_init_rank_config(&other, 2, ranks.id, 1, nullptr), ncclSuccess);
  waiting.join();
}

}  // namespace
}  // namespace hora::internal::test
