// Streams and memory: given back once, whatever fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <type_traits>
#include <utility>

#include "ops/cuda/memory.h"
#include "ops/cuda/stream.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/fake_gpu.h"

namespace hora::internal {
namespace {

/// How to make each owner, and what it calls.
struct MakesStream {
  using Owner = CudaStream;
  static constexpr auto kCreate = "stream_create";
  static constexpr auto kDestroy = "stream_destroy";
  static Owner make(const CudaFunctions& cuda) { return Owner(cuda, 0); }
  static int live(const test::LiveHandles& handles) { return handles.streams; }
};
struct MakesEvent {
  using Owner = Event;
  static constexpr auto kCreate = "event_create";
  static constexpr auto kDestroy = "event_destroy";
  static Owner make(const CudaFunctions& cuda) { return Owner(cuda); }
  static int live(const test::LiveHandles& handles) { return handles.events; }
};
struct MakesPinned {
  using Owner = PinnedMemory;
  static constexpr auto kCreate = "host_alloc";
  static constexpr auto kDestroy = "free_host";
  static Owner make(const CudaFunctions& cuda) { return Owner(cuda, 1000); }
  static int live(const test::LiveHandles& handles) { return handles.pinned; }
};
struct MakesDevice {
  using Owner = DeviceMemory;
  static constexpr auto kCreate = "malloc";
  static constexpr auto kDestroy = "free";
  static Owner make(const CudaFunctions& cuda) { return Owner(cuda, 1000); }
  static int live(const test::LiveHandles& handles) { return handles.device; }
};
struct MakesPool {
  using Owner = MemoryPool;
  static constexpr auto kCreate = "mem_pool_create";
  static constexpr auto kDestroy = "mem_pool_destroy";
  static Owner make(const CudaFunctions& cuda) { return Owner(cuda, 0); }
  static int live(const test::LiveHandles& handles) { return handles.pools; }
};

template <class Makes>
class OwnerTest : public testing::Test {
 protected:
  int live() const { return Makes::live(gpu_.live()); }
  typename Makes::Owner make() { return Makes::make(gpu_.cuda()); }

  test::FakeNcclWorld world_;
  test::FakeGpu gpu_{world_};
};
using Owners = testing::Types<MakesStream, MakesEvent, MakesPinned, MakesDevice, MakesPool>;
TYPED_TEST_SUITE(OwnerTest, Owners);

TYPED_TEST(OwnerTest, IsMoveOnlyAndMovesWithoutThrowing) {
  using Owner = typename TypeParam::Owner;
  static_assert(!std::is_copy_constructible_v<Owner> && !std::is_copy_assignable_v<Owner>);
  static_assert(std::is_nothrow_move_constructible_v<Owner>);
  static_assert(std::is_nothrow_move_assignable_v<Owner>);
}

TYPED_TEST(OwnerTest, GivesBackOnce) {
  {
    auto first = this->make();
    EXPECT_EQ(this->live(), 1);
    auto second = std::move(first);
    EXPECT_EQ(this->live(), 1);
    auto third = this->make();
    EXPECT_EQ(this->live(), 2);
    third = std::move(second);
    EXPECT_EQ(this->live(), 1);
  }
  EXPECT_EQ(this->gpu_.live(), test::LiveHandles{});
  EXPECT_EQ(this->gpu_.count(TypeParam::kDestroy), 2);
  EXPECT_THAT(this->gpu_.violations(), testing::IsEmpty());
}

TYPED_TEST(OwnerTest, FailureToMakeLeavesNothing) {
  this->gpu_.fail(TypeParam::kCreate, 1, cudaErrorUnknown);
  EXPECT_THROW(this->make(), Error);
  EXPECT_EQ(this->gpu_.live(), test::LiveHandles{});
  EXPECT_EQ(this->gpu_.count(TypeParam::kDestroy), 0);
  EXPECT_EQ(this->gpu_.cuda().get_last_error(), cudaSuccess);
}

TYPED_TEST(OwnerTest, FailureToDestroyIsNotThrown) {
  this->gpu_.fail(TypeParam::kDestroy, 1, cudaErrorUnknown);
  { auto owner = this->make(); }
  EXPECT_EQ(this->gpu_.live(), test::LiveHandles{});
  EXPECT_EQ(this->gpu_.cuda().get_last_error(), cudaSuccess);
}

TYPED_TEST(OwnerTest, EmptyOwnsNothing) {
  { typename TypeParam::Owner owner; }
  EXPECT_EQ(this->gpu_.count(TypeParam::kDestroy), 0);
}

class MemoryTest : public testing::Test {
 protected:
  test::FakeNcclWorld world_;
  test::FakeGpu gpu_{world_};
};

TEST_F(MemoryTest, LackOfMemoryNamesTheBytes) {
  gpu_.fail("malloc", 1, cudaErrorMemoryAllocation);
  gpu_.fail("host_alloc", 1, cudaErrorMemoryAllocation);
  const auto expect = [](auto make, const char* text) {
    test::expect_error(ErrorCode::out_of_memory, testing::HasSubstr(text), [&] { make(); });
  };
  expect([&] { DeviceMemory(gpu_.cuda(), 12345); }, "cudaMalloc of 12345 bytes");
  expect([&] { PinnedMemory(gpu_.cuda(), 54321); }, "cudaHostAlloc of 54321 bytes");
}

TEST_F(MemoryTest, NoBytesNeedNoAllocation) {
  const DeviceMemory device(gpu_.cuda(), 0);
  const PinnedMemory pinned(gpu_.cuda(), 0);
  EXPECT_EQ(device.data(), nullptr);
  EXPECT_EQ(pinned.data(), nullptr);
  EXPECT_EQ(gpu_.count("malloc") + gpu_.count("host_alloc"), 0);
}

}  // namespace
}  // namespace hora::internal
