// Sends and receives of the fake NCCL.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "ops/cuda/stream.h"
#include "tests/support/fake_gpu/fake_gpu.h"
#include "tests/support/fake_gpu/ranks.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Rank {
  Rank(Ranks& ranks, int number)
      : gpu(ranks.gpu(number)),
        nccl(gpu.nccl()),
        stream(gpu.cuda(), 0),
        memory(gpu.cuda(), 64),
        communicator(ranks.communicator(number)) {
    communicator.wait_ready(far_away());
  }
  void send(int offset, std::size_t bytes, int peer) {
    nccl.send(memory.data() + offset, bytes, ncclUint8, peer, communicator.get(), stream.get());
  }
  void recv(int offset, std::size_t bytes, int peer) {
    nccl.recv(memory.data() + offset, bytes, ncclUint8, peer, communicator.get(), stream.get());
  }
  void finish() {
    communicator.wait_ready(far_away());
    EXPECT_EQ(gpu.cuda().stream_synchronize(stream.get()), cudaSuccess);
  }
  FakeGpu& gpu;
  const NcclFunctions& nccl;
  CudaStream stream;
  DeviceMemory memory;
  NcclCommunicator communicator;
};

TEST(FakeTransfers, EveryRankSendsToEveryRankAndToItself) {
  constexpr int kRanks = 3;
  Ranks ranks(kRanks, {.seed = seed(), .longest_delay = std::chrono::microseconds(300)});
  ranks.run([&](int number) {
    Rank rank(ranks, number);
    for (int i = 0; i < 2 * kRanks; ++i) rank.memory.data()[i] = std::byte(10 * number + i);
    for (int step = 0; step < 10; ++step) {
      ASSERT_EQ(rank.nccl.group_start(), ncclSuccess);
      for (int peer = 0; peer < kRanks; ++peer) {
        rank.recv(32 + 2 * peer, 2, peer);
        rank.send(2 * peer, 2, peer);
      }
      EXPECT_THAT(rank.nccl.group_end(), testing::AnyOf(ncclSuccess, ncclInProgress));
      rank.finish();
      for (int peer = 0; peer < kRanks; ++peer) {
        EXPECT_EQ(rank.memory.data()[32 + 2 * peer], std::byte(10 * peer + 2 * number));
      }
    }
    rank.communicator.close(far_away());
  });
  EXPECT_THAT(ranks.world.errors(), IsEmpty());
}

TEST(FakeTransfers, LengthsThatDifferAreSeen) {
  Ranks ranks(2);
  ranks.run([&](int number) {
    Rank rank(ranks, number);
    if (number == 0) {
      rank.send(0, 4, 1);
    } else {
      rank.recv(0, 5, 0);
    }
    try {
      rank.communicator.wait_ready(far_away());
    } catch (const std::exception&) {
      // The other rank was first to see it.
    }
    EXPECT_EQ(rank.gpu.cuda().stream_synchronize(rank.stream.get()), cudaSuccess);
    EXPECT_THROW(rank.communicator.check_async(), std::exception);
  });
  EXPECT_THAT(ranks.world.errors(), ElementsAre(HasSubstr("send of 4 uint8, peer 1")));
}

TEST(FakeTransfers, WhoWaitsForAPeerThatNeverComesHangsUntilItAborts) {
  Ranks ranks(2);
  ranks.run([&](int number) {
    Rank rank(ranks, number);
    if (number == 0) return;
    rank.recv(0, 4, 0);
    rank.communicator.wait_ready(far_away());
    rank.send(0, 4, 0);
    rank.communicator.wait_ready(far_away());
    rank.communicator.abort();
    EXPECT_EQ(rank.gpu.cuda().stream_synchronize(rank.stream.get()), cudaSuccess);
  });
  EXPECT_THAT(ranks.world.errors(), IsEmpty());
}

}  // namespace
}  // namespace hora::internal::test
