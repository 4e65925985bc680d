#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <utility>

#include "ops/nccl/communicator.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/ranks.h"

namespace hora::internal {
namespace {

using test::LiveHandles;

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
