// Collectives of the fake NCCL, 1 to 4 ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "ops/cuda/stream.h"
#include "ops/local/kernels.h"
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

TEST_P(FakeNcclTest, AllReduceSumsAndAverages) {
  const int size = GetParam();
  run([&](NcclRank& rank, int number) {
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
  run([&](NcclRank& rank, int) {
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
  run([&](NcclRank& rank, int number) {
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
  run([&](NcclRank& rank, int number) {
    for (int i = 0; i < 2 * size; ++i) {
      rank.values()[i] = static_cast<float>(100 * number + i);
    }
    float* const own = rank.values() + 2 * number;
    rank.nccl.reduce_scatter(rank.values(), own, 2, ncclFloat32, ncclSum, rank.communicator.get(),
                             rank.stream.get());
    rank.communicator.wait_ready(far_away());
    rank.nccl.all_gather(own, rank.values(), 2, ncclFloat32, rank.communicator.get(),
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
  run([&](NcclRank& rank, int number) {
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
