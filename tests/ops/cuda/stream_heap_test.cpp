#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>

#include "ops/cuda/memory.h"
#include "ops/cuda/stream.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/fake_gpu.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

class StreamHeapTest : public testing::Test {
 protected:
  test::FakeNcclWorld world_;
  test::FakeGpu gpu_{world_, {.seed = test::seed()}};
  EventPool events_{gpu_.cuda()};
  CudaStream own_{gpu_.cuda(), 0};
  CudaStream users_{gpu_.cuda(), 0};
  StreamHeap heap_{gpu_.cuda(), 0, events_, own_.get()};
};

TEST_F(StreamHeapTest, CopiesWhatIsLongerThanItsBlock) {
  auto random = test::generator();
  std::vector<std::byte> bytes((std::size_t{9} << 20) + 17);
  std::ranges::generate(bytes, [&] { return static_cast<std::byte>(random()); });
  std::byte* const data = heap_.allocate(bytes.size(), users_.get());
  heap_.to_device(data, bytes.data(), bytes.size(), users_.get());
  std::vector<std::byte> back(bytes.size());
  heap_.to_host(back.data(), data, back.size(), users_.get());
  EXPECT_TRUE(back == bytes);
  heap_.release(data, users_.get());
  EXPECT_THAT(gpu_.violations(), testing::IsEmpty());
}

TEST_F(StreamHeapTest, MemoryGoesInTheOrderOfTheStream) {
  std::byte* const of_user = heap_.allocate(100, users_.get());
  std::byte* const own = heap_.allocate(100, std::nullopt);
  gpu_.hold();
  heap_.release(of_user, users_.get());
  heap_.release(own, std::nullopt);
  EXPECT_EQ(gpu_.live().device, 2) << "both streams have not come so far";
  gpu_.resume();
  gpu_.cuda().stream_synchronize(users_.get());
  gpu_.cuda().stream_synchronize(own_.get());
  EXPECT_EQ(gpu_.live().device, 0);
}

TEST_F(StreamHeapTest, NothingForNothing) {
  EXPECT_EQ(heap_.allocate(0, std::nullopt), nullptr);
  heap_.release(nullptr, std::nullopt);
  heap_.to_host(nullptr, nullptr, 0, users_.get());
  EXPECT_EQ(gpu_.count("mem_pool_create") + gpu_.count("malloc_from_pool_async") +
                gpu_.count("free_async") + gpu_.count("host_alloc"),
            0);
}

// By the table hora has no other pool.
TEST_F(StreamHeapTest, MemoryIsOfOnePoolOfItsOwnThatKeepsAll) {
  std::byte* const data = heap_.allocate(100, users_.get());
  heap_.release(data, users_.get());
  heap_.release(heap_.allocate(200, std::nullopt), std::nullopt);
  EXPECT_THAT(gpu_.kept_by_pools(),
              testing::ElementsAre(std::numeric_limits<std::uint64_t>::max()));
  EXPECT_EQ(gpu_.count("mem_pool_create"), 1);
  EXPECT_EQ(gpu_.count("mem_pool_trim_to"), 0);
  EXPECT_THAT(gpu_.violations(), testing::IsEmpty());
}

TEST_F(StreamHeapTest, APoolThatCannotBeMadeIsMadeTheNextTime) {
  for (const char* call : {"mem_pool_create", "mem_pool_set_attribute"}) {
    gpu_.fail(call, 1, cudaErrorNotSupported);
    test::expect_error(ErrorCode::transport, testing::HasSubstr("cudaMemPool"),
                       [&] { heap_.allocate(64, std::nullopt); });
    EXPECT_EQ(gpu_.live().pools, 0) << call;
    EXPECT_EQ(gpu_.cuda().get_last_error(), cudaSuccess);
  }
  heap_.release(heap_.allocate(64, std::nullopt), std::nullopt);
  EXPECT_EQ(gpu_.live().pools, 1);
}

TEST_F(StreamHeapTest, WhereMemoryIsLackingThePoolGivesBackWhatIsFree) {
  gpu_.fail("malloc_from_pool_async", 1, cudaErrorMemoryAllocation);
  gpu_.fail("mem_pool_trim_to", 1, cudaErrorUnknown);
  std::byte* const data = heap_.allocate(64, std::nullopt);
  EXPECT_NE(data, nullptr);
  EXPECT_EQ(gpu_.count("mem_pool_trim_to"), 1);
  EXPECT_EQ(gpu_.cuda().get_last_error(), cudaSuccess);
  heap_.release(data, std::nullopt);
}

TEST_F(StreamHeapTest, WhereMemoryIsLackingTheFrameworkGivesBackItsOwn) {
  static int released = 0;
  released = 0;
  heap_.set_cache_release([] { ++released; });
  gpu_.fail("malloc_from_pool_async", 1, cudaErrorMemoryAllocation);
  std::byte* const data = heap_.allocate(64, std::nullopt);
  EXPECT_NE(data, nullptr);
  EXPECT_EQ(released, 1);
  EXPECT_EQ(gpu_.cuda().get_last_error(), cudaSuccess);
  heap_.release(data, std::nullopt);
  gpu_.fail("malloc_from_pool_async", 0, cudaErrorMemoryAllocation);
  test::expect_error(ErrorCode::out_of_memory, [&] { heap_.allocate(64, std::nullopt); });
  EXPECT_EQ(released, 2);
  EXPECT_EQ(gpu_.cuda().get_last_error(), cudaSuccess);
}

TEST_F(StreamHeapTest, FailuresAreNamed) {
  for (const int attempt : {1, 2}) {
    gpu_.fail("malloc_from_pool_async", attempt, cudaErrorMemoryAllocation);
  }
  test::expect_error(ErrorCode::out_of_memory, testing::HasSubstr("12345 bytes"),
                     [&] { heap_.allocate(12345, std::nullopt); });
  std::byte* const data = heap_.allocate(64, users_.get());
  std::vector<std::byte> host(64);
  for (const char* call : {"memcpy_async", "event_record", "event_synchronize", "get_device"}) {
    gpu_.fail(call, 1, cudaErrorLaunchFailure);
    EXPECT_THROW(heap_.to_host(host.data(), data, 64, users_.get()), Error) << call;
  }
  heap_.release(data, users_.get());
}

}  // namespace
}  // namespace hora::internal
