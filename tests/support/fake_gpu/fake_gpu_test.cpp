#include "tests/support/fake_gpu/fake_gpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "ops/cuda/stream.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using std::chrono::milliseconds;
using testing::IsEmpty;

constexpr int kValues = 1000;
constexpr std::size_t kBytes = kValues * sizeof(int);

class FakeGpuTest : public testing::Test {
 protected:
  // All on the stream, not at once.
  void fill(const CudaStream& stream, std::byte* target, int value) {
    ASSERT_EQ(gpu_.cuda().memset_async(target, value, kBytes, stream.get()), cudaSuccess);
  }
  void copy(const CudaStream& stream, std::byte* target, const std::byte* source) {
    ASSERT_EQ(gpu_.cuda().memcpy_async(target, source, kBytes, cudaMemcpyDefault, stream.get()),
              cudaSuccess);
  }
  void finish(const CudaStream& stream) {
    ASSERT_EQ(gpu_.cuda().stream_synchronize(stream.get()), cudaSuccess);
  }
  static bool all(const std::byte* data, int value) {
    return std::all_of(data, data + kBytes,
                       [&](std::byte byte) { return byte == std::byte(value); });
  }

  FakeNcclWorld world_;
  FakeGpu gpu_{world_, {.seed = seed(), .longest_delay = std::chrono::microseconds(500)}};
};

TEST_F(FakeGpuTest, WorkRunsLaterAndInOrder) {
  const CudaStream stream(gpu_.cuda(), 0);
  const DeviceMemory first(gpu_.cuda(), kBytes);
  const DeviceMemory second(gpu_.cuda(), kBytes);
  const PinnedMemory host(gpu_.cuda(), kBytes);
  gpu_.hold();
  for (int value = 1; value <= 20; ++value) {
    fill(stream, first.data(), value);
    copy(stream, second.data(), first.data());
  }
  copy(stream, host.data(), second.data());
  EXPECT_TRUE(all(first.data(), 0xcb)) << "nothing has run yet";
  gpu_.resume();
  finish(stream);
  EXPECT_TRUE(all(host.data(), 20));
  EXPECT_THAT(gpu_.violations(), IsEmpty());
}

TEST_F(FakeGpuTest, WaitingIsForTheRecordAtTheTimeOfTheCall) {
  const CudaStream stream(gpu_.cuda(), 0);
  const CudaStream stuck(gpu_.cuda(), 0);
  const DeviceMemory memory(gpu_.cuda(), kBytes);
  Event event(gpu_.cuda());
  wait(stream.get(), event);  // never recorded: nothing to wait for
  event.record(stream.get());
  wait(stream.get(), event);
  gpu_.delay("memset_async", milliseconds(200));
  fill(stuck, memory.data(), 1);
  event.record(stuck.get());  // the stream does not wait for this one
  finish(stream);
  EXPECT_FALSE(event.query());
}

TEST_F(FakeGpuTest, FindsMemoryThatIsNotItsOwn) {
  const CudaStream stream(gpu_.cuda(), 0);
  const DeviceMemory memory(gpu_.cuda(), kBytes);
  const PinnedMemory host(gpu_.cuda(), kBytes);
  std::vector<std::byte> pageable(kBytes);
  const CudaFunctions& cuda = gpu_.cuda();
  const auto copy_fails = [&](void* target, const void* source, cudaMemcpyKind kind) {
    return cuda.memcpy_async(target, source, kBytes, kind, stream.get()) == cudaErrorInvalidValue;
  };
  EXPECT_TRUE(copy_fails(memory.data() + 1, host.data(), cudaMemcpyHostToDevice));
  EXPECT_TRUE(copy_fails(memory.data(), pageable.data(), cudaMemcpyHostToDevice));
  EXPECT_TRUE(copy_fails(memory.data(), host.data(), cudaMemcpyDeviceToHost));
  EXPECT_EQ(cuda.memset_async(host.data(), 0, kBytes, stream.get()), cudaErrorInvalidValue);
  const std::vector<CopyPiece> pieces = {{nullptr, memory.data() + 4, kValues}};
  EXPECT_EQ(cuda.batched_copy({pieces}, stream.get()), cudaErrorInvalidValue);
  EXPECT_EQ(gpu_.violations().size(), 5U);
}

TEST_F(FakeGpuTest, FindsHandlesThatAreNotItsOwn) {
  FakeGpu other(world_);
  other.choose();
  const CudaStream foreign(other.cuda(), 0);
  cudaEvent_t stale = Event(gpu_.cuda()).get();
  EXPECT_EQ(gpu_.cuda().stream_synchronize(foreign.get()), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(gpu_.cuda().event_query(stale), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(gpu_.cuda().event_destroy(stale), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(gpu_.violations().size(), 3U);
}

TEST_F(FakeGpuTest, FailsTheNthCallOrAll) {
  const CudaFunctions& cuda = gpu_.cuda();
  EXPECT_EQ(cuda.set_device(0), cudaSuccess);
  gpu_.fail("set_device", 2, cudaErrorUnknown);
  EXPECT_EQ(cuda.set_device(0), cudaSuccess);
  EXPECT_EQ(cuda.set_device(0), cudaErrorUnknown);
  EXPECT_EQ(cuda.get_last_error(), cudaErrorUnknown);
  EXPECT_EQ(cuda.get_last_error(), cudaSuccess);
  EXPECT_EQ(cuda.set_device(0), cudaSuccess);
  gpu_.fail("set_device", 0, cudaErrorUnknown);
  EXPECT_EQ(cuda.set_device(0), cudaErrorUnknown);
  EXPECT_EQ(cuda.set_device(0), cudaErrorUnknown);
  EXPECT_EQ(gpu_.count("set_device"), 6);
  EXPECT_THROW(gpu_.fail("set_devise", 1, cudaErrorUnknown), std::invalid_argument);
  EXPECT_THROW(gpu_.count("cudaSetDevice"), std::invalid_argument);
}

}  // namespace
}  // namespace hora::internal::test
