// Collectives of the fake NCCL, 1 to 4 ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "ops/cuda/event.h"
#include "ops/cuda/memory.h"
#include "ops/cuda/stream.h"
#include "ops/local/kernels.h"
#include "ops/nccl/communicator.h"
#include "tests/support/fake_gpu/fake_gpu.h"
#include "tests/support/fake_gpu/ranks.h"
#include "tests/support/seed.h"

namespace hora::test {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// What each rank has in these tests.
struct Rank {
  Rank(Ranks& ranks, int number)
      : gpu(ranks.gpu(number)),
        nccl(gpu.nccl()),
        stream(gpu.cuda(), 0),
        memory(gpu.cuda(), 64 * sizeof(double)),
        communicator(ranks.communicator(number)) {
    communicator.wait_ready(far_away());
  }
  float* values() const { return reinterpret_cast<float*>(memory.data()); }
  ncclResult_t all_reduce(std::size_t count, ncclDataType_t type = ncclFloat32,
                          ncclRedOp_t op = ncclSum) {
    return nccl.all_reduce(memory.data(), memory.data(), count, type, op, communicator.get(),
                           stream.get());
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

FakeGpuOptions with_delays() {
  return {.seed = seed(), .longest_delay = std::chrono::microseconds(300)};
}

class FakeNcclTest : public testing::TestWithParam<int> {
 protected:
  void run(const std::function<void(Rank&, int)>& body) {
    ranks_.run([&](int number) {
      Rank rank(ranks_, number);
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

TEST_P(FakeNcclTest, AllReduceSumsAndAverages) {
  const int size = GetParam();
  run([&](Rank& rank, int number) {
    for (int step = 0; step < 20; ++step) {
      rank.values()[0] = static_cast<float>(number + 1);
      rank.values()[1] = static_cast<float>(step);
      ASSERT_THAT(rank.all_reduce(2, ncclFloat32, step % 2 == 0 ? ncclSum : ncclAvg),
                  testing::AnyOf(ncclSuccess, ncclInProgress));
      rank.finish();
      const float sum = static_cast<float>(size * (size + 1)) / 2;
      const auto ranks = static_cast<float>(step % 2 == 0 ? 1 : size);
      EXPECT_FLOAT_EQ(rank.values()[0], sum / ranks);
      EXPECT_FLOAT_EQ(rank.values()[1], static_cast<float>(step * size) / ranks);
    }
  });
}

TEST_P(FakeNcclTest, AllReduceKnowsEveryType) {
  const int size = GetParam();
  run([&](Rank& rank, int) {
    const auto sum_of_twos = [&]<class T>(ncclDataType_t type, T two) {
      T* const values = reinterpret_cast<T*>(rank.memory.data());
      std::fill_n(values, 5, two);
      rank.all_reduce(5, type);
      rank.finish();
      EXPECT_TRUE(std::equal(values + 1, values + 5, values));
      return values[0];
    };
    const int sum = 2 * size;
    EXPECT_EQ(sum_of_twos(ncclFloat64, 2.0), sum);
    EXPECT_EQ(sum_of_twos(ncclInt32, std::int32_t{2}), sum);
    EXPECT_EQ(sum_of_twos(ncclInt64, std::int64_t{2}), sum);
    EXPECT_EQ(sum_of_twos(ncclUint8, std::uint8_t{2}), sum);
    EXPECT_EQ(from_float16(sum_of_twos(ncclFloat16, to_float16(2))), static_cast<float>(sum));
    EXPECT_EQ(from_bfloat16(sum_of_twos(ncclBfloat16, to_bfloat16(2))), static_cast<float>(sum));
  });
}

TEST_P(FakeNcclTest, AllReduceKnowsEveryOperation) {
  const int size = GetParam();
  run([&](Rank& rank, int number) {
    const auto of_my_number = [&](ncclRedOp_t op) {
      rank.values()[0] = static_cast<float>(number + 1);
      rank.all_reduce(1, ncclFloat32, op);
      rank.finish();
      return rank.values()[0];
    };
    EXPECT_FLOAT_EQ(of_my_number(ncclMin), 1);
    EXPECT_FLOAT_EQ(of_my_number(ncclMax), static_cast<float>(size));
    EXPECT_FLOAT_EQ(of_my_number(ncclProd), std::tgamma(static_cast<float>(size + 1)));
  });
}

TEST_P(FakeNcclTest, ReduceScatterAndAllGatherInPlace) {
  const int size = GetParam();
  run([&](Rank& rank, int number) {
    for (int i = 0; i < 2 * size; ++i) {
      rank.values()[i] = static_cast<float>(100 * number + i);
    }
    float* const mine = rank.values() + 2 * number;
    rank.nccl.reduce_scatter(rank.values(), mine, 2, ncclFloat32, ncclSum, rank.communicator.get(),
                             rank.stream.get());
    rank.communicator.wait_ready(far_away());
    rank.nccl.all_gather(mine, rank.values(), 2, ncclFloat32, rank.communicator.get(),
                         rank.stream.get());
    rank.finish();
    for (int i = 0; i < 2 * size; ++i) {
      EXPECT_FLOAT_EQ(rank.values()[i], static_cast<float>(50 * size * (size - 1) + size * i));
    }
  });
}

TEST_P(FakeNcclTest, BroadcastAndReduceHaveARoot) {
  const int size = GetParam();
  const int root = size - 1;
  run([&](Rank& rank, int number) {
    rank.values()[0] = static_cast<float>(10 + number);
    rank.values()[1] = -1;
    rank.nccl.broadcast(rank.values(), rank.values(), 1, ncclFloat32, root, rank.communicator.get(),
                        rank.stream.get());
    rank.communicator.wait_ready(far_away());
    rank.nccl.reduce(rank.values(), number == root ? rank.values() + 1 : nullptr, 1, ncclFloat32,
                     ncclSum, root, rank.communicator.get(), rank.stream.get());
    rank.finish();
    EXPECT_FLOAT_EQ(rank.values()[0], static_cast<float>(10 + root));
    EXPECT_FLOAT_EQ(rank.values()[1], number == root ? static_cast<float>(size * (10 + root)) : -1);
  });
}

TEST_P(FakeNcclTest, GroupsAreEnqueuedAtTheirEnd) {
  const int size = GetParam();
  run([&](Rank& rank, int) {
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

TEST_P(FakeNcclTest, FirstCollectiveIsInProgressUntilPolled) {
  run([&](Rank& rank, int) {
    ASSERT_EQ(rank.all_reduce(1), ncclInProgress);
    EXPECT_EQ(rank.all_reduce(1), ncclInvalidArgument) << "not before the first is enqueued";
    Event too_early(rank.gpu.cuda());
    too_early.record(rank.stream.get());
    too_early.synchronize();
    rank.communicator.wait_ready(far_away());
    EXPECT_EQ(rank.all_reduce(1), ncclSuccess);
  });
}

TEST(FakeNcclFaultTest, RanksThatDisagreeAllSeeIt) {
  const auto expect_error = [](const std::function<void(Rank&, int)>& body, const char* text) {
    Ranks ranks(3, with_delays());
    ranks.run([&](int number) {
      Rank rank(ranks, number);
      body(rank, number);
      try {
        while (true) {
          rank.communicator.check_async();
        }
      } catch (const std::exception& error) {
        EXPECT_THAT(error.what(), HasSubstr(text));
      }
      EXPECT_EQ(rank.gpu.cuda().stream_synchronize(rank.stream.get()), cudaSuccess);
    });
    EXPECT_THAT(ranks.world.errors(), ElementsAre(HasSubstr(text)));
  };
  expect_error([](Rank& rank, int number) { rank.all_reduce(number == 2 ? 4 : 5); },
               "rank 2: all_reduce of 4 float32, sum");
  expect_error(
      [](Rank& rank, int number) { rank.all_reduce(5, number == 1 ? ncclInt32 : ncclFloat32); },
      "rank 1: all_reduce of 5 int32, sum");
  expect_error([](Rank& rank,
                  int number) { rank.all_reduce(5, ncclFloat32, number == 1 ? ncclAvg : ncclSum); },
               "rank 1: all_reduce of 5 float32, average");
  expect_error(
      [](Rank& rank, int number) {
        if (number == 1) {
          rank.nccl.broadcast(rank.values(), rank.values(), 5, ncclFloat32, 0,
                              rank.communicator.get(), rank.stream.get());
        } else {
          rank.all_reduce(5);
        }
      },
      "rank 1: broadcast of 5 float32, root 0");
}

TEST(FakeNcclFaultTest, PeersHangUntilTheyAbortToo) {
  Ranks ranks(3, {.first_collective_polls = 0});
  ranks.run([&](int number) {
    Rank rank(ranks, number);
    Event event(rank.gpu.cuda());
    if (number != 0) {
      ASSERT_EQ(rank.all_reduce(5), ncclSuccess);
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
  Rank rank(ranks, 0);
  for (const char* call : {"all_reduce", "group_end"}) {
    rank.gpu.nccl_fail(call, 1, ncclSystemError);
    EXPECT_EQ(rank.nccl.group_start(), ncclSuccess);
    rank.all_reduce(1);
    EXPECT_EQ(rank.nccl.group_end(), ncclSystemError) << call;
  }
  EXPECT_EQ(rank.nccl.group_end(), ncclInvalidUsage) << "no group is open";
  EXPECT_EQ(rank.all_reduce(1), ncclInProgress);
  rank.finish();
  EXPECT_EQ(rank.gpu.nccl_count("all_reduce"), 3);
}

TEST(FakeNcclFaultTest, RefusesWhatIsNotItsOwn) {
  Ranks ranks(2);
  ranks.run([&](int number) {
    Rank rank(ranks, number);
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
  while (ranks.gpu(0).live().communicators == 0) {
    std::this_thread::yield();
  }
  EXPECT_EQ(ranks.gpu(0).nccl().group_start(), ncclInvalidUsage);
  EXPECT_THAT(ranks.world.errors(), ElementsAre(HasSubstr("two threads")));
  FakeGpu peer(ranks.world);
  ncclComm_t other = nullptr;
  EXPECT_EQ(peer.nccl().comm_init_rank_config(&other, 2, ranks.id, 1, nullptr), ncclSuccess);
  waiting.join();
}

TEST(FakeNcclFaultTest, EndsWithCollectivesThatCannotFinish) {
  Ranks ranks(2, {.first_collective_polls = 0});
  ranks.run([&](int number) {
    NcclCommunicator communicator = ranks.communicator(number);
    communicator.wait_ready(far_away());
    if (number == 0) {
      void* memory = nullptr;
      ranks.gpu(0).cuda().malloc(&memory, 4);
      ranks.gpu(0).nccl().all_reduce(memory, memory, 1, ncclFloat32, ncclSum, communicator.get(),
                                     nullptr);
    }
  });
}

}  // namespace
}  // namespace hora::test
