// Communicators, memory that is registered with them, and what ranks agree on of windows. What
// becomes of buffers by that is in gpu_windows_test.
#include "ops/nccl/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/engine/interfaces.h"
#include "ops/cuda/stream.h"
#include "ops/nccl/functions.h"
#include "ops/nccl/nccl_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/fake_gpu.h"
#include "tests/support/fake_gpu/ranks.h"
#include "tests/support/reference/elements.h"

namespace hora::internal {
namespace {
using test::far_away;
using test::in_milliseconds;
using test::LiveHandles;
using test::Ranks;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(NcclCheckTest, NamesCallReasonNumberAndTheLastErrorOfTheCommunicator) {
  Ranks ranks(1);
  const NcclFunctions& nccl = ranks.gpu(0).nccl();
  test::expect_error(ErrorCode::transport, "ncclAllReduce failed: remote process exited (error 6)",
                     [&] { nccl_check(nccl, ncclRemoteError, "ncclAllReduce"); });
  EXPECT_THROW(nccl_check(nccl, ncclRemoteError, "ncclAllReduce"), PeerFailure);
  const NcclCommunicator communicator = ranks.communicator(0);
  ranks.gpu(0).async_error(ncclSystemError);
  test::expect_error(
      ErrorCode::transport, HasSubstr("NCCL's last error: an error that the test has scripted"),
      [&] { nccl_check(nccl, ncclSystemError, "ncclAllReduce", communicator.get()); });
}

static_assert(!std::is_copy_constructible_v<NcclCommunicator>);
static_assert(std::is_nothrow_move_constructible_v<NcclCommunicator>);
static_assert(std::is_nothrow_move_assignable_v<NcclCommunicator>);

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
    EXPECT_THAT(ranks.world.errors(), IsEmpty());
  }
}

TEST(NcclCommunicatorTest, DoesNotWaitForRanksThatDoNotCome) {
  Ranks ranks(2);
  {
    const NcclCommunicator communicator = ranks.communicator(0);
    for (int poll = 0; poll < 100; ++poll) EXPECT_FALSE(communicator.ready());
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
  EXPECT_THAT(ranks.world.errors(), IsEmpty());
}

// Each call fails once, at once or in the background: it is thrown by a member that needs it.
TEST(NcclCommunicatorTest, FailuresAreThrownAndLeaveNothing) {
  for (const char* call : {"comm_init_rank_config", "initialisation", "comm_get_async_error",
                           "comm_finalize", "comm_destroy"}) {
    Ranks ranks(1);
    ranks.gpu(0).nccl_fail(call, 1, ncclSystemError);
    const auto live = [&] {
      NcclCommunicator communicator = ranks.communicator(0);
      communicator.wait_ready(far_away());
      communicator.close(far_away());
    };
    EXPECT_THROW(live(), Error) << call;
    EXPECT_EQ(ranks.gpu(0).live(), LiveHandles{}) << call;
  }
  Ranks ranks(1);
  NcclCommunicator communicator = ranks.communicator(0);
  communicator.wait_ready(far_away());
  ranks.gpu(0).async_error(ncclRemoteError);
  EXPECT_THROW(communicator.check_async(), Error);
  EXPECT_THROW(communicator.close(far_away()), Error);
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

constexpr Location kProposal{.window = kProposedWindow, .reserved = 0, .offset = 4096};

Location in_window(std::uint32_t window, std::uint32_t given_back = kNoWindow) {
  return {.window = window, .reserved = 0, .offset = given_back};
}

TEST(WindowAgreement, IsWhatAllRanksSay) {
  Location longer = kProposal;
  longer.offset += 1;
  const struct {
    std::vector<Location> places;
    WindowAgreement expected;
  } kCases[] = {
      {{kProposal, kProposal, kProposal}, {.begins = true}},
      {{kProposal, longer}, {}},
      {{kProposal, {}}, {}},
      {{kProposal, in_window(1)}, {}},
      {{in_window(3), in_window(3)}, {.is_shared = true}},
      {{in_window(3), in_window(4)}, {}},
      {{in_window(3), {}}, {}},
      {{{}, {}}, {}},
      {{in_window(3, 1), in_window(3, 1)}, {.is_shared = true, .ends = 1}},
      {{in_window(3, 1), in_window(3, 2)}, {.is_shared = true}},
      {{in_window(3, 1), in_window(3)}, {.is_shared = true}},
      {{kProposal, kNowhere}, {}},  // a rank that has joined
      {{in_window(1), kNowhere}, {}},
      {{kNowhere, kNowhere}, {}},
      {{}, {}},
  };
  for (const auto& tested : kCases) {
    EXPECT_EQ(agreement_of(tested.places), tested.expected) << &tested - kCases;
  }
}

using enum DataType;
TEST(ToNccl, RefusesWhatNcclLacks) {
  for (const DataType type : test::kAllTypes) {
    if (std::ranges::count(test::kNcclTypes, type) == 1) continue;
    test::expect_error(ErrorCode::invalid_argument, HasSubstr(std::string(name_of(type))),
                       [&] { (void)to_nccl(type); });
    EXPECT_EQ(travelling_type(type), ncclFloat16) << "travels as what is as long";
  }
  EXPECT_THROW(to_nccl(static_cast<DataType>(99)), Error);
  EXPECT_THROW(to_nccl(ReduceOp::adasum, float32), Error);
}

TEST(Windows, HaveSumsOfAveragesUpToFloat32) {
  const auto sums = [](DataType type, ReduceOp op, OperationKind kind = OperationKind::allreduce) {
    Unit unit;
    unit.kind = kind;
    unit.type = type;
    unit.op = op;
    return sums_scaled_in_windows(unit);
  };
  for (const auto type : {DataType::float32, DataType::float16, DataType::bfloat16}) {
    EXPECT_TRUE(sums(type, ReduceOp::average));
    EXPECT_FALSE(sums(type, ReduceOp::sum));
    EXPECT_FALSE(sums(type, ReduceOp::average, OperationKind::broadcast));
  }
  EXPECT_FALSE(sums(DataType::float64, ReduceOp::average));
  EXPECT_FALSE(sums(DataType::int32, ReduceOp::average));
}

class RegisteredMemoryTest : public testing::Test {
 protected:
  void SetUp() override { communicator_.wait_ready(far_away()); }
  void TearDown() override {
    communicator_.abort();
    EXPECT_EQ(gpu_.live(), LiveHandles{});
    EXPECT_THAT(gpu_.violations(), IsEmpty());
  }
  RegisteredMemory make(std::size_t bytes) { return {gpu_.nccl(), communicator_, bytes}; }

  test::Ranks ranks_{1};
  test::FakeGpu& gpu_ = ranks_.gpu(0);
  NcclCommunicator communicator_ = ranks_.communicator(0);
};

TEST_F(RegisteredMemoryTest, IsRegisteredWithACommunicatorThatMayMove) {
  constexpr LiveHandles kOne{.device = 1, .communicators = 1, .registrations = 1};
  {
    RegisteredMemory first = make(1000);
    EXPECT_EQ(first.bytes(), 1000U);
    EXPECT_EQ(gpu_.live(), kOne);
    RegisteredMemory second = std::move(first);
    EXPECT_EQ(first.data(), nullptr);
    RegisteredMemory third = make(10);
    third = std::move(second);
    EXPECT_EQ(gpu_.live(), kOne);
    communicator_ = NcclCommunicator(std::move(communicator_));
  }
  EXPECT_EQ(gpu_.nccl_count("comm_deregister"), 2);
  gpu_.nccl_fail("comm_register", 1, ncclInvalidUsage);
  const RegisteredMemory memory = make(1000);
  EXPECT_NE(memory.data(), nullptr) << "works without the registration";
  EXPECT_EQ(gpu_.live().registrations, 0);
}

struct FinishedLink final : PointToPoint {
  FinishedLink() : PointToPoint(1, 3) {}
  Request send(int, int, std::span<const std::byte>) override { return 0; }
  Request receive(int, int, std::span<std::byte>) override { return 0; }
  bool test(Request) override { return true; }
  bool cancel(Request) override { return true; }
};

TEST(DeviceLink, MakesTheDeviceCurrentWhereItIsNot) {
  test::FakeNcclWorld world;
  const test::FakeGpu gpu(world, {.peers = 2});
  FinishedLink inner;
  DeviceLink link(gpu.cuda(), 2, inner);
  EXPECT_TRUE(link.test(0));
  int current = 0;
  gpu.cuda().get_device(&current);
  EXPECT_EQ(current, 2) << "and it stays so";
}

}  // namespace
}  // namespace hora::internal
