// The fake NCCL does as the real one what a simpler fake would not, and what hangs there, or reads
// other memory, it refuses: collectives and groups, windows of symmetric memory, misuse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <list>
#include <thread>
#include <vector>

#include "core/engine/interfaces.h"
#include "ops/cuda/stream.h"
#include "tests/support/fake_gpu/ranks.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct NcclRank {
  NcclRank(Ranks& ranks, int number)
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
    return all_reduce_in(memory.data(), count, type, op);
  }
  ncclResult_t all_reduce_in(void* data, std::size_t count, ncclDataType_t type = ncclFloat32,
                             ncclRedOp_t op = ncclSum) {
    return nccl.all_reduce(data, data, count, type, op, communicator.get(), stream.get());
  }
  void finish() {
    communicator.wait_ready(far_away());
    EXPECT_EQ(gpu.cuda().stream_synchronize(stream.get()), cudaSuccess);
  }
  /// Stays until the rank has ended, which NCCL may need.
  RegisteredMemory& block(std::size_t bytes = 256) {
    return blocks.emplace_back(nccl, communicator, bytes);
  }
  RegisteredMemory& window() {
    RegisteredMemory& made = block();
    made.become_window();
    communicator.wait_ready(far_away());
    return made;
  }

  FakeGpu& gpu;
  const NcclFunctions& nccl;
  CudaStream stream;
  DeviceMemory memory;
  NcclCommunicator communicator;
  std::list<RegisteredMemory> blocks;
};

FakeGpuOptions with_delays() {
  return {.seed = seed(), .longest_delay = std::chrono::microseconds(300)};
}

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

TEST_P(FakeNcclTest, CollectivesAreOnTheirStreamsLaterOfGroupsAfterTheirEnd) {
  const int size = GetParam();
  run([&](NcclRank& rank, int) {
    for (const bool in_group : {false, true}) {
      rank.gpu.hold_launches();
      rank.values()[0] = 1;
      const ncclResult_t begun = size == 1 ? ncclSuccess : ncclInProgress;
      if (in_group) rank.nccl.group_start();
      ASSERT_EQ(rank.all_reduce(1), in_group ? ncclSuccess : begun);
      Event too_early(rank.gpu.cuda());
      too_early.record(rank.stream.get());
      too_early.synchronize();
      EXPECT_TRUE(size == 1 || rank.values()[0] == 1.0F);
      EXPECT_EQ(in_group ? rank.nccl.group_end() : begun, begun);
      if (size > 1) {
        EXPECT_EQ(rank.all_reduce(1), ncclInvalidArgument) << "not before the first is enqueued";
        EXPECT_FALSE(rank.communicator.ready());
      }
      rank.gpu.resume_launches();
      rank.finish();
      EXPECT_FLOAT_EQ(rank.values()[0], static_cast<float>(size));
    }
  });
}

TEST_P(FakeNcclTest, AWindowComesToBeWhenAllRanksHaveCome) {
  if (GetParam() == 1) return;
  run([&](NcclRank& rank, int number) {
    RegisteredMemory& memory = rank.block();
    std::fill_n(reinterpret_cast<float*>(memory.data()), 4, 1.0F);
    if (number != 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_EQ(ranks_.gpu(0).live().windows, 0);
    memory.become_window();
    if (number == 0) {
      EXPECT_EQ(rank.all_reduce(1), ncclInvalidArgument) << "not before it is there";
    }
    rank.communicator.wait_ready(far_away());
    EXPECT_EQ(rank.gpu.live().windows, 1);
    EXPECT_EQ(rank.all_reduce_in(memory.data(), 4), ncclInProgress);
    rank.finish();
    EXPECT_FLOAT_EQ(*reinterpret_cast<float*>(memory.data()), static_cast<float>(GetParam()));
    memory.deregister();
    rank.blocks.clear();
  });
}

/// Two ranks, each of which sees the error.
TEST(FakeNcclFaults, RanksThatDisagreeAllSeeIt) {
  const struct {
    const char* text;
    std::function<void(NcclRank&, bool is_second)> body;
  } kCases[] = {
      {"rank 1: all_reduce of 4 float32, sum",
       [](NcclRank& rank, bool second) { rank.all_reduce(second ? 4 : 5); }},
      {"rank 1: all_reduce of 5 int32, sum",
       [](NcclRank& rank, bool second) { rank.all_reduce(5, second ? ncclInt32 : ncclFloat32); }},
      {"rank 1: all_reduce of 5 float32, average",
       [](NcclRank& rank, bool second) {
         rank.all_reduce(5, ncclFloat32, second ? ncclAvg : ncclSum);
       }},
      {"rank 1: broadcast of 5 float32, root 0",
       [](NcclRank& rank, bool second) {
         if (!second) return void(rank.all_reduce(5));
         rank.nccl.broadcast(rank.values(), rank.values(), 5, ncclFloat32, 0,
                             rank.communicator.get(), rank.stream.get());
       }},
      {"send of 4 uint8, peer 1",
       [](NcclRank& rank, bool second) {
         const auto comm = rank.communicator.get();
         if (second)
           return void(rank.nccl.recv(rank.values(), 5, ncclUint8, 0, comm, rank.stream.get()));
         rank.nccl.send(rank.values(), 4, ncclUint8, 1, comm, rank.stream.get());
       }},
      {"window of 512 bytes",
       [](NcclRank& rank, bool second) { rank.block(second ? 512 : 256).become_window(); }},
      {"after 1 collectives",
       [](NcclRank& rank, bool second) {
         if (!second) rank.all_reduce(1);
         rank.communicator.wait_ready(far_away());
         rank.window();
         if (second) rank.all_reduce(1);
       }},
      {"beside windows 1",
       [](NcclRank& rank, bool second) {
         RegisteredMemory& first = rank.window();
         if (!second) first.deregister();
         rank.window();
       }},
      {"in window 1 at 0",
       [](NcclRank& rank, bool second) {
         rank.all_reduce_in(rank.window().data() + (second ? 64 : 0), 4);
       }},
      {"in window 1 at 0",
       [](NcclRank& rank, bool second) {
         RegisteredMemory& window = rank.window();
         rank.all_reduce_in((second ? rank.block() : window).data(), 4);
       }},
  };
  for (const auto& tested : kCases) {
    Ranks ranks(2, with_delays());
    ranks.run([&](int number) {
      NcclRank rank(ranks, number);
      try {
        tested.body(rank, number == 1);
        while (true) rank.communicator.check_async();
      } catch (const std::exception& error) {
        EXPECT_THAT(error.what(), HasSubstr(tested.text));
      }
      rank.communicator.abort();
    });
    EXPECT_THAT(ranks.world.errors(), ElementsAre(HasSubstr(tested.text)));
  }
}

TEST(FakeNcclFaults, MisuseByOneRankIsAViolation) {
  const struct {
    const char* text;
    std::function<void(NcclRank&)> body;
  } kCases[] = {
      {"memory that is not in any block",
       [](NcclRank& rank) {
         float host = 0;
         EXPECT_EQ(rank.all_reduce_in(&host, 1), ncclInvalidArgument);
       }},
      {"memory that is not in any block",
       [](NcclRank& rank) { EXPECT_EQ(rank.all_reduce(1000), ncclInvalidArgument); }},
      {"ncclMemAlloc did not give",
       [](NcclRank& rank) {
         void* window = nullptr;
         EXPECT_EQ(rank.nccl.comm_window_register(rank.communicator.get(), rank.memory.data(), 64,
                                                  &window, 1),
                   ncclInvalidArgument);
       }},
      {"under work that uses it",
       [](NcclRank& rank) {
         RegisteredMemory& memory = rank.window();
         rank.gpu.hold();
         rank.all_reduce_in(memory.data(), 4);
         memory.deregister();
         rank.gpu.resume();
         rank.finish();
       }},
      {"a window was ended while NCCL's launching thread reads them",
       [](NcclRank& rank) {
         rank.gpu.hold_launches();
         rank.block().become_window();
         EXPECT_NE(rank.nccl.comm_window_deregister(rank.communicator.get(), nullptr), ncclSuccess);
         rank.gpu.resume_launches();
       }},
      {"a registration was changed while NCCL's launching thread reads them",
       [](NcclRank& rank) {
         RegisteredMemory& memory = rank.block();
         rank.gpu.hold_launches();
         rank.block().become_window();
         memory.deregister();
         rank.gpu.resume_launches();
       }},
      {"freeing memory that is registered",
       [](NcclRank& rank) {
         void* memory = nullptr;
         void* window = nullptr;
         ASSERT_EQ(rank.nccl.mem_alloc(&memory, 256), ncclSuccess);
         rank.nccl.comm_window_register(rank.communicator.get(), memory, 256, &window, 1);
         rank.communicator.wait_ready(far_away());
         rank.nccl.mem_free(memory);
       }},
  };
  for (const auto& tested : kCases) {
    Ranks ranks(1, with_delays());
    ranks.run([&](int) {
      NcclRank rank(ranks, 0);
      tested.body(rank);
      rank.communicator.wait_ready(far_away());
      EXPECT_THAT(rank.gpu.violations(), ElementsAre(HasSubstr(tested.text)));
      rank.communicator.abort();
    });
  }
}

TEST(FakeNcclFaults, OthersAreRefused) {
  Ranks ranks(1);
  NcclRank rank(ranks, 0);
  EXPECT_EQ(rank.all_reduce(1, ncclInt32, ncclAvg), ncclInvalidArgument);
  EXPECT_EQ(rank.all_reduce(1, ncclFloat32, ncclNumOps), ncclInvalidArgument);
  for (const char* call : {"all_reduce", "group_end"}) {
    rank.gpu.nccl_fail(call, 1, ncclSystemError);
    EXPECT_EQ(rank.nccl.group_start(), ncclSuccess);
    rank.all_reduce(1);
    EXPECT_EQ(rank.nccl.group_end(), ncclSystemError) << call;
  }
  EXPECT_EQ(rank.nccl.group_end(), ncclInvalidUsage) << "no group is open";
  rank.window();
  rank.communicator.close(far_away());
  EXPECT_EQ(rank.all_reduce(1), ncclInvalidArgument) << "closed";
  EXPECT_THAT(ranks.world.errors(), ElementsAre(HasSubstr("whose memory is lost")));
}

TEST(FakeNcclFaults, AnAbortInAnOpenGroupIsOnlyQueued) {
  Ranks ranks(1);
  NcclRank rank(ranks, 0);
  ASSERT_EQ(rank.nccl.group_start(), ncclSuccess);
  rank.communicator.abort();
  EXPECT_EQ(rank.gpu.live().communicators, 1);
  ASSERT_EQ(rank.nccl.group_end(), ncclSuccess);
  EXPECT_EQ(rank.gpu.live().communicators, 0);
}

}  // namespace
}  // namespace hora::internal::test
