// Windows of the fake NCCL's symmetric memory: how they come to be and end, and what it refuses, as
// the real one would hang or read other memory there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <functional>
#include <list>
#include <thread>

#include "tests/support/fake_gpu/nccl_rank.h"

namespace hora::internal::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct WindowRank : NcclRank {
  using NcclRank::NcclRank;
  /// Stays until the rank has ended, which NCCL may need.
  RegisteredMemory& memory_of(std::size_t bytes) {
    return blocks.emplace_back(nccl, communicator, bytes);
  }
  void make_window(RegisteredMemory& block) {
    block.become_window();
    communicator.wait_ready(far_away());
  }
  ncclResult_t all_reduce_in(const RegisteredMemory& block, std::size_t offset = 0) {
    auto* const data = block.data() + offset;
    return nccl.all_reduce(data, data, 4, ncclFloat32, ncclSum, communicator.get(), stream.get());
  }
  std::list<RegisteredMemory> blocks;
};

class FakeWindows : public testing::TestWithParam<int> {
 protected:
  void run(const std::function<void(WindowRank&, int)>& body) {
    ranks_.run([&](int number) {
      WindowRank rank(ranks_, number);
      body(rank, number);
    });
  }
  Ranks ranks_{GetParam(), with_delays()};
};
INSTANTIATE_TEST_SUITE_P(Sizes, FakeWindows, testing::Values(2, 3));

TEST_P(FakeWindows, OneComesToBeWhenAllRanksHaveCome) {
  run([&](WindowRank& rank, int number) {
    RegisteredMemory& memory = rank.memory_of(256);
    auto* const values = reinterpret_cast<float*>(memory.data());
    values[0] = 1;
    if (number == 0) {
      memory.become_window();
      EXPECT_FALSE(rank.communicator.ready());
      EXPECT_EQ(rank.all_reduce(1), ncclInvalidArgument) << "not before it is there";
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_FALSE(ranks_.gpu(0).live().windows == 1);
      memory.become_window();
    }
    rank.communicator.wait_ready(far_away());
    EXPECT_EQ(rank.gpu.live().windows, 1);
    EXPECT_EQ(rank.all_reduce_in(memory), ncclInProgress);
    rank.finish();
    EXPECT_FLOAT_EQ(values[0], static_cast<float>(GetParam()));
    memory.deregister();
    rank.communicator.close(far_away());
    EXPECT_EQ(rank.gpu.live().windows, 0);
    EXPECT_THAT(rank.gpu.violations(), IsEmpty());
  });
  EXPECT_THAT(ranks_.world.errors(), IsEmpty());
}

/// Expects all ranks' communicators to report it after `body`.
void expect_error(const std::function<void(WindowRank&, int)>& body, const char* text) {
  Ranks ranks(2, with_delays());
  ranks.run([&](int number) {
    WindowRank rank(ranks, number);
    try {
      body(rank, number);
      while (true) rank.communicator.check_async();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(text));
    }
    rank.communicator.abort();
  });
  EXPECT_THAT(ranks.world.errors(), ElementsAre(HasSubstr(text)));
}

TEST(FakeWindowFaults, RanksThatMakeThemOtherwiseAllSeeIt) {
  expect_error(
      [](WindowRank& rank, int number) {
        RegisteredMemory& memory = rank.memory_of(number == 0 ? 256 : 512);
        memory.become_window();
        rank.communicator.wait_ready(far_away());
        rank.all_reduce(1);
      },
      "window of 512 bytes");
  expect_error(
      [](WindowRank& rank, int number) {
        RegisteredMemory& memory = rank.memory_of(256);
        if (number == 0) rank.all_reduce(1);
        rank.communicator.wait_ready(far_away());
        memory.become_window();
        rank.communicator.wait_ready(far_away());
        if (number == 1) rank.all_reduce(1);
        while (true) rank.communicator.check_async();
      },
      "after 1 collectives");
  expect_error(
      [](WindowRank& rank, int number) {
        RegisteredMemory& first = rank.memory_of(256);
        RegisteredMemory& second = rank.memory_of(256);
        rank.make_window(first);
        if (number == 0) first.deregister();
        rank.make_window(second);
        while (true) rank.communicator.check_async();
      },
      "beside windows 1");
}

TEST(FakeWindowFaults, CollectivesInThemOnSomeRanksAloneAreSeen) {
  for (const std::size_t offset : {std::size_t{64}, std::size_t{256}}) {
    expect_error(
        [offset](WindowRank& rank, int number) {
          RegisteredMemory& memory = rank.memory_of(256);
          RegisteredMemory& plain = rank.memory_of(256);
          rank.make_window(memory);
          rank.all_reduce_in(number == 1 && offset == 256 ? plain : memory,
                             number == 1 ? offset % 256 : 0);
          while (true) rank.communicator.check_async();
        },
        "in window 1 at 0");
  }
}

TEST(FakeWindowFaults, MisuseOfOneRankIsAViolation) {
  const auto expect_violation = [](const std::function<void(WindowRank&)>& body, const char* text) {
    Ranks ranks(1, with_delays());
    ranks.run([&](int number) {
      WindowRank rank(ranks, number);
      body(rank);
      EXPECT_THAT(rank.gpu.violations(), ElementsAre(HasSubstr(text)));
      rank.communicator.abort();
    });
  };
  expect_violation(
      [](WindowRank& rank) {
        void* window = nullptr;
        EXPECT_EQ(rank.nccl.comm_window_register(rank.communicator.get(), rank.memory.data(), 64,
                                                 &window, 1),
                  ncclInvalidArgument);
      },
      "ncclMemAlloc did not give");
  expect_violation(
      [](WindowRank& rank) {
        RegisteredMemory& memory = rank.memory_of(256);
        rank.make_window(memory);
        rank.gpu.hold();
        rank.all_reduce_in(memory);
        memory.deregister();
        rank.gpu.resume();
        rank.finish();
      },
      "under work that uses it");
  expect_violation(
      [](WindowRank& rank) {
        RegisteredMemory& memory = rank.memory_of(256);
        RegisteredMemory& other = rank.memory_of(256);
        rank.make_window(memory);
        rank.gpu.hold_launches();
        other.become_window();
        void* const window = nullptr;
        EXPECT_NE(rank.nccl.comm_window_deregister(rank.communicator.get(), window), ncclSuccess);
        rank.gpu.resume_launches();
        rank.communicator.wait_ready(far_away());
      },
      "while NCCL's launching thread reads them");
  expect_violation(
      [](WindowRank& rank) {
        void* memory = nullptr;
        void* window = nullptr;
        ASSERT_EQ(rank.nccl.mem_alloc(&memory, 256), ncclSuccess);
        rank.nccl.comm_window_register(rank.communicator.get(), memory, 256, &window, 1);
        rank.communicator.wait_ready(far_away());
        rank.nccl.mem_free(memory);
      },
      "freeing memory that is registered");
}

TEST(FakeWindowFaults, ACommunicatorIsNotClosedWithWindows) {
  Ranks ranks(1);
  ranks.run([&](int number) {
    WindowRank rank(ranks, number);
    RegisteredMemory& memory = rank.memory_of(256);
    rank.make_window(memory);
    rank.communicator.close(far_away());
  });
  EXPECT_THAT(ranks.world.errors(), ElementsAre(HasSubstr("whose memory is lost")));
}

}  // namespace
}  // namespace hora::internal::test
