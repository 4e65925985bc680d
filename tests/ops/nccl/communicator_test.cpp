// What ranks say of their tensors, and what becomes of buffers by it. What NCCL makes of that is in
// gpu_windows_test.
#include "ops/nccl/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/engine/interfaces.h"
#include "ops/cuda/stream.h"
#include "ops/nccl/functions.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/ranks.h"
#include "tests/support/reference/elements.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

TEST(NcclCheckTest, SuccessAndInProgressThrowNothing) {
  test::Ranks ranks(1);
  const NcclFunctions& nccl = ranks.gpu(0).nccl();
  EXPECT_NO_THROW(nccl_check(nccl, ncclSuccess, "ncclAllReduce"));
  EXPECT_NO_THROW(nccl_check(nccl, ncclInProgress, "ncclAllReduce"));
}

TEST(NcclCheckTest, NamesCallReasonAndNumber) {
  test::Ranks ranks(1);
  test::expect_error(ErrorCode::transport, "ncclAllReduce failed: remote process exited (error 6)",
                     [&] { nccl_check(ranks.gpu(0).nccl(), ncclRemoteError, "ncclAllReduce"); });
}

TEST(NcclCheckTest, OnlyWhatNcclSaysOfAPeerIsAPeerFailure) {
  test::Ranks ranks(1);
  const NcclFunctions& nccl = ranks.gpu(0).nccl();
  EXPECT_THROW(nccl_check(nccl, ncclRemoteError, "ncclAllReduce"), PeerFailure);
  for (const ncclResult_t result : {ncclSystemError, ncclInternalError, ncclUnhandledCudaError}) {
    try {
      nccl_check(nccl, result, "ncclAllReduce");
      FAIL() << "nothing was thrown";
    } catch (const PeerFailure&) {
      FAIL() << "error " << result;
    } catch (const Error&) {
    }
  }
}

TEST(NcclCheckTest, AddsTheLastErrorOfTheCommunicator) {
  test::Ranks ranks(1);
  const NcclCommunicator communicator = ranks.communicator(0);
  ranks.gpu(0).async_error(communicator.get(), ncclSystemError);
  try {
    nccl_check(ranks.gpu(0).nccl(), ncclSystemError, "ncclAllReduce", communicator.get());
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                testing::HasSubstr("NCCL's last error: an error that the test has scripted"));
  }
}

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

constexpr Location kProposal{.window = kProposedWindow, .reserved = 0, .offset = 4096};

Location in_window(std::uint32_t window, std::uint32_t given_back = kNoWindow) {
  return {.window = window, .reserved = 0, .offset = given_back};
}

WindowAgreement agreed(const std::vector<Location>& places) {
  return agreement_of(places);
}

TEST(WindowAgreement, BuffersOfOneLengthThatAllProposeBecomeOne) {
  EXPECT_EQ(agreed({kProposal, kProposal, kProposal}), WindowAgreement{.begins = true});
  Location longer = kProposal;
  longer.offset += 1;
  EXPECT_EQ(agreed({kProposal, longer}), WindowAgreement{});
  EXPECT_EQ(agreed({kProposal, {}}), WindowAgreement{});
  EXPECT_EQ(agreed({kProposal, in_window(1)}), WindowAgreement{});
}

TEST(WindowAgreement, ATensorIsInTheWindowThatAllGive) {
  EXPECT_EQ(agreed({in_window(3), in_window(3)}), WindowAgreement{.is_shared = true});
  EXPECT_EQ(agreed({in_window(3), in_window(4)}), WindowAgreement{});
  EXPECT_EQ(agreed({in_window(3), {}}), WindowAgreement{});
  EXPECT_EQ(agreed({{}, {}}), WindowAgreement{});
}

TEST(WindowAgreement, OneEndsThatAllNameAsTheirFirst) {
  EXPECT_EQ(agreed({in_window(3, 1), in_window(3, 1)}),
            (WindowAgreement{.is_shared = true, .ends = 1}));
  EXPECT_EQ(agreed({in_window(3, 1), in_window(3, 2)}), WindowAgreement{.is_shared = true});
  EXPECT_EQ(agreed({in_window(3, 1), in_window(3)}), WindowAgreement{.is_shared = true});
}

TEST(WindowAgreement, ARankThatHasJoinedHasNone) {
  EXPECT_EQ(agreed({kProposal, kNowhere}), WindowAgreement{});
  EXPECT_EQ(agreed({in_window(1), kNowhere}), WindowAgreement{});
  EXPECT_EQ(agreed({kNowhere, kNowhere}), WindowAgreement{});
  EXPECT_EQ(agreed({}), WindowAgreement{});
}

/// Two ranks of one program, each with buffers of its own; NCCL takes part in none of it.
class NcclBuffersTest : public testing::Test {
 protected:
  void SetUp() override {
    gpu_.choose();
    communicator_.wait_ready(test::far_away());
    for (NcclBuffers& each : buffers_) each.enable_windows();
  }
  void TearDown() override {
    communicator_.abort();
    for (NcclBuffers& each : buffers_) each.free_all();
  }
  std::byte* add(int rank, std::size_t bytes) {
    RegisteredMemory memory(gpu_.nccl(), communicator_, bytes);
    std::byte* const data = memory.data();
    of(rank).add(std::move(memory));
    return data;
  }
  NcclBuffers& of(int rank) { return buffers_[static_cast<std::size_t>(rank)]; }

  /// Tensors of 64 bytes each that begin there, of rank 0 and of rank 1, when they are submitted.
  struct Submitted {
    std::vector<std::array<std::byte*, 2>> tensors;
    std::vector<Location> places = {};
  };
  Submitted submit(std::vector<std::array<std::byte*, 2>> tensors) {
    Submitted submitted{std::move(tensors)};
    for (const auto& tensor : submitted.tensors) {
      for (int rank = 0; rank < 2; ++rank) {
        submitted.places.push_back(of(rank).place(tensor[static_cast<std::size_t>(rank)]));
      }
    }
    return submitted;
  }
  WindowPlan plan(int rank, const Submitted& submitted) {
    BoundUnit unit;
    unit.local_size = 2;
    unit.places = submitted.places;
    for (const auto& tensor : submitted.tensors) {
      unit.unit.tensors.push_back({});
      unit.memory.insert(unit.memory.end(), 2, tensor[static_cast<std::size_t>(rank)]);
    }
    return of(rank).plan(unit, rank);
  }
  std::array<WindowPlan, 2> plans(const Submitted& submitted) {
    return {plan(0, submitted), plan(1, submitted)};
  }

  test::Ranks ranks_{1};
  test::FakeGpu& gpu_ = ranks_.gpu(0);
  NcclCommunicator communicator_ = ranks_.communicator(0);
  std::array<NcclBuffers, 2> buffers_;
};

TEST_F(NcclBuffersTest, ABufferProposesItselfInOneCollectiveAtATime) {
  const std::array first = {add(0, 100), add(1, 100)};
  const Submitted one = submit({first});
  const Submitted other = submit({first});
  EXPECT_THAT(other.places, testing::Each(Location{}));
  for (const WindowPlan& plan : plans(one)) EXPECT_EQ(plan.begins.size(), 1U);
  for (const WindowPlan& plan : plans(other)) EXPECT_TRUE(plan.is_apart(0)) << "it is one by now";
  for (const WindowPlan& plan : plans(submit({first}))) {
    EXPECT_FALSE(plan.changes());
    EXPECT_TRUE(plan.apart.empty());
    EXPECT_TRUE(plan.is_shared(0));
  }
}

TEST_F(NcclBuffersTest, WhereTheRanksDoNotAgreeItProposesItselfAgain) {
  const std::array first = {add(0, 100), add(1, 100)};
  std::byte* const longer = add(1, 200);
  for (const WindowPlan& plan : plans(submit({{first[0], longer}}))) EXPECT_FALSE(plan.changes());
  for (const WindowPlan& plan : plans(submit({first}))) EXPECT_EQ(plan.begins.size(), 1U);
}

TEST_F(NcclBuffersTest, ATensorIsApartAlsoFromAWindowThatBeginsWithItsUnit) {
  const std::array first = {add(0, 100), add(1, 100)};
  const std::array parts = {first[0] + 36, first[1] + 36};
  for (const WindowPlan& plan : plans(submit({parts, first}))) {
    EXPECT_EQ(plan.begins.size(), 1U);
    EXPECT_EQ(plan.apart, (std::vector{true, false}));
    EXPECT_EQ(plan.shared, (std::vector{false, true}));
  }
}

TEST_F(NcclBuffersTest, WhatIsGivenBackStaysUntilBothRanksSaySo) {
  const std::array first = {add(0, 100), add(1, 100)};
  const std::array second = {add(0, 100), add(1, 100)};
  const std::byte* const never = add(0, 100);
  EXPECT_TRUE(of(0).give_back(const_cast<std::byte*>(never)));
  plans(submit({first, second}));
  EXPECT_FALSE(of(0).give_back(first[0]));
  for (const WindowPlan& plan : plans(submit({second}))) EXPECT_FALSE(plan.changes());
  EXPECT_FALSE(of(1).give_back(first[1]));
  const Submitted one = submit({second});
  const Submitted late = submit({second});  // names it, too
  for (const WindowPlan& plan : plans(one)) EXPECT_EQ(plan.ends, std::vector<std::uint32_t>{1});
  for (const WindowPlan& plan : plans(late)) EXPECT_FALSE(plan.changes());
  EXPECT_EQ(gpu_.nccl_count("mem_free"), 1);
  of(0).carry_out({.ends = {1}}, gpu_.nccl());
  EXPECT_EQ(gpu_.nccl_count("mem_free"), 2);
}

TEST_F(NcclBuffersTest, KnowsWhatLiesInWindows) {
  const std::array first = {add(0, 100), add(1, 100)};
  EXPECT_FALSE(of(0).in_window(first[0]));
  plans(submit({first}));
  EXPECT_TRUE(of(0).has_windows());
  EXPECT_TRUE(of(0).in_window(first[0]));
  EXPECT_TRUE(of(0).in_window(first[0] + 99));
  EXPECT_FALSE(of(0).in_window(first[0] + 100));
  EXPECT_FALSE(of(0).in_window(first[0] - 1));
  EXPECT_FALSE(of(0).in_window(nullptr));
  of(0).end_windows();
  EXPECT_FALSE(of(0).in_window(first[0]));
  EXPECT_EQ(of(0).place(first[0]), Location{});
}

TEST_F(NcclBuffersTest, WithoutWindowsNothingHasAPlace) {
  NcclBuffers off;
  RegisteredMemory memory(gpu_.nccl(), communicator_, 100);
  std::byte* const data = memory.data();
  off.add(std::move(memory));
  EXPECT_EQ(off.place(data), Location{});
  EXPECT_EQ(of(0).place(nullptr), Location{});
  EXPECT_TRUE(off.give_back(data));
  EXPECT_TRUE(off.empty());
}

// Submitted in any order on the two ranks and several at once, but run in one order.
TEST_F(NcclBuffersTest, RanksAlwaysPlanAlike) {
  auto random = test::generator();
  std::vector<std::array<std::byte*, 2>> live;
  std::vector<Submitted> in_flight;
  for (int step = 0; step < 3000; ++step) {
    const auto which = random() % 4;
    if (which == 0 && live.size() < 6) {
      live.push_back({add(0, 64 + random() % 2), add(1, 64)});
    } else if (which == 1 && !live.empty() && in_flight.empty()) {
      auto& buffer = live[random() % live.size()];
      const std::size_t rank = random() % 2;  // the other one does so later, or never
      static_cast<void>(of(static_cast<int>(rank)).give_back(buffer[rank]));
      buffer[rank] = add(static_cast<int>(rank), 64);
    } else if (which == 2 && !live.empty()) {
      const auto one = live[random() % live.size()];
      const auto other = live[random() % live.size()];
      in_flight.push_back(submit({random() % 5 == 0 ? std::array{one[0], other[1]} : one}));
    } else if (!in_flight.empty()) {
      const auto [first, second] = plans(in_flight.front());
      in_flight.erase(in_flight.begin());
      ASSERT_EQ(first.ends, second.ends);
      ASSERT_EQ(first.begins.size(), second.begins.size());
      for (std::size_t i = 0; i < first.begins.size(); ++i) {
        ASSERT_EQ(first.begins[i]->bytes(), second.begins[i]->bytes());
      }
    }
  }
}

using enum DataType;

TEST(ToNccl, EveryTypeButIntegersOf16Bits) {
  EXPECT_EQ(to_nccl(float16), ncclFloat16);
  EXPECT_EQ(to_nccl(bfloat16), ncclBfloat16);
  EXPECT_EQ(to_nccl(float32), ncclFloat32);
  EXPECT_EQ(to_nccl(float64), ncclFloat64);
  EXPECT_EQ(to_nccl(int32), ncclInt32);
  EXPECT_EQ(to_nccl(int64), ncclInt64);
  EXPECT_EQ(to_nccl(uint8), ncclUint8);
  EXPECT_EQ(to_nccl(int8), ncclInt8);
  EXPECT_EQ(to_nccl(boolean), ncclUint8);
  EXPECT_EQ(to_nccl(uint32), ncclUint32);
  EXPECT_EQ(to_nccl(uint64), ncclUint64);
  for (const DataType type : test::kAllTypes) {
    if (std::ranges::count(test::kNcclTypes, type) == 1) {
      EXPECT_NO_THROW(to_nccl(type)) << name_of(type);
      continue;
    }
    const Error error =
        test::expect_error(ErrorCode::invalid_argument, [&] { (void)to_nccl(type); });
    EXPECT_THAT(error.what(), testing::HasSubstr(std::string(name_of(type)))) << name_of(type);
    EXPECT_EQ(travelling_type(type), ncclFloat16) << "travels as what is as long";
  }
  EXPECT_THROW(to_nccl(static_cast<DataType>(99)), Error);
  EXPECT_EQ(travelling_type(int32), ncclInt32);
}

TEST(ToNccl, EveryOperationButAdasum) {
  EXPECT_EQ(to_nccl(ReduceOp::average, float32), ncclAvg);
  EXPECT_EQ(to_nccl(ReduceOp::sum, float32), ncclSum);
  EXPECT_EQ(to_nccl(ReduceOp::min, int8), ncclMin);
  EXPECT_EQ(to_nccl(ReduceOp::max, int8), ncclMax);
  EXPECT_EQ(to_nccl(ReduceOp::product, int8), ncclProd);
  EXPECT_THROW(to_nccl(ReduceOp::adasum, float32), Error);
}

TEST(ToNccl, TruthsAreZeroAndOne) {
  EXPECT_EQ(to_nccl(ReduceOp::sum, boolean), ncclMax);
  EXPECT_EQ(to_nccl(ReduceOp::max, boolean), ncclMax);
  EXPECT_EQ(to_nccl(ReduceOp::product, boolean), ncclMin);
  EXPECT_EQ(to_nccl(ReduceOp::min, boolean), ncclMin);
}

TEST(Preparation, OfScaledValuesAndOfBooleansThatAreReduced) {
  Unit unit;
  EXPECT_FALSE(needs_preparation(unit));
  unit.prescale = 0.5;
  EXPECT_TRUE(needs_preparation(unit));
  EXPECT_EQ(preparation(unit).scale, 0.5);

  Unit truths;
  truths.type = boolean;
  EXPECT_TRUE(needs_preparation(truths));
  EXPECT_EQ(preparation(truths).source_type, uint8);
  EXPECT_EQ(preparation(truths).target_type, boolean);
  truths.kind = OperationKind::broadcast;
  EXPECT_FALSE(needs_preparation(truths)) << "they travel as they are";
  EXPECT_EQ(preparation(truths).source_type, boolean);
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
  void SetUp() override { communicator_.wait_ready(test::far_away()); }
  void TearDown() override {
    communicator_.abort();
    EXPECT_EQ(gpu_.live(), LiveHandles{});
    EXPECT_THAT(gpu_.violations(), testing::IsEmpty());
  }
  RegisteredMemory make(std::size_t bytes) { return {gpu_.nccl(), communicator_, bytes}; }

  test::Ranks ranks_{1};
  test::FakeGpu& gpu_ = ranks_.gpu(0);
  NcclCommunicator communicator_ = ranks_.communicator(0);
};

TEST_F(RegisteredMemoryTest, IsAllocatedAndRegistered) {
  RegisteredMemory first = make(1000);
  EXPECT_EQ(first.bytes(), 1000U);
  EXPECT_TRUE(first.registered());
  EXPECT_EQ(gpu_.live(), (LiveHandles{.device = 1, .communicators = 1, .registrations = 1}));
  RegisteredMemory second = std::move(first);
  EXPECT_EQ(first.data(), nullptr);
  RegisteredMemory third = make(10);
  third = std::move(second);
  EXPECT_EQ(gpu_.live(), (LiveHandles{.device = 1, .communicators = 1, .registrations = 1}));
}

TEST_F(RegisteredMemoryTest, WorksWithoutTheRegistration) {
  gpu_.nccl_fail("comm_register", 1, ncclInvalidUsage);
  const RegisteredMemory memory = make(1000);
  EXPECT_NE(memory.data(), nullptr);
  EXPECT_FALSE(memory.registered());
}

TEST_F(RegisteredMemoryTest, LackOfMemoryNamesTheBytes) {
  gpu_.nccl_fail("mem_alloc", 1, ncclUnhandledCudaError);
  test::expect_error(ErrorCode::out_of_memory,
                     testing::AllOf(testing::HasSubstr("ncclMemAlloc of 12345 bytes failed"),
                                    testing::HasSubstr("NCCL_CUMEM_ENABLE=0")),
                     [&] { make(12345); });
}

TEST_F(RegisteredMemoryTest, MayOutliveTheCommunicator) {
  const RegisteredMemory memory = make(1000);
  communicator_.abort();
  EXPECT_EQ(gpu_.live().device, 1);
}

TEST_F(RegisteredMemoryTest, KnowsACommunicatorThatHasMoved) {
  {
    const RegisteredMemory memory = make(1000);
    communicator_ = NcclCommunicator(std::move(communicator_));
  }
  EXPECT_EQ(gpu_.nccl_count("comm_deregister"), 1);
  EXPECT_EQ(gpu_.live().registrations, 0);
}

TEST_F(RegisteredMemoryTest, FailuresToReleaseAreNotThrown) {
  gpu_.nccl_fail("comm_deregister", 1, ncclSystemError);
  gpu_.nccl_fail("mem_free", 1, ncclSystemError);
  make(1000);
}

TEST_F(RegisteredMemoryTest, NoBytesNeedNoAllocation) {
  const RegisteredMemory memory = make(0);
  EXPECT_EQ(memory.data(), nullptr);
  EXPECT_EQ(gpu_.nccl_count("mem_alloc"), 0);
}

}  // namespace

}  // namespace hora::internal
