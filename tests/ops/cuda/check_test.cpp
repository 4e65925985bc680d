#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include "ops/cuda/functions.h"
#include "tests/support/fake_gpu/fake_gpu.h"

namespace hora::internal {
namespace {

class CudaCheckTest : public testing::Test {
 protected:
  Error failure(cudaError_t error) {
    try {
      cuda_check(gpu_.cuda(), error, "cudaEventRecord");
    } catch (const Error& thrown) {
      return thrown;
    }
    ADD_FAILURE() << "nothing was thrown";
    return {ErrorCode::invalid_use, ""};
  }

  test::FakeNcclWorld world_;
  test::FakeGpu gpu_{world_};
};

TEST_F(CudaCheckTest, SuccessThrowsNothing) {
  EXPECT_NO_THROW(cuda_check(gpu_.cuda(), cudaSuccess, "cudaEventRecord"));
}

TEST_F(CudaCheckTest, NamesCallReasonAndNumber) {
  const Error error = failure(cudaErrorInvalidValue);
  EXPECT_EQ(error.code(), ErrorCode::transport);
  EXPECT_STREQ(error.what(), "cudaEventRecord failed: invalid argument (error 1)");
}

TEST_F(CudaCheckTest, LackOfMemoryHasItsOwnCode) {
  const Error error = failure(cudaErrorMemoryAllocation);
  EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  EXPECT_THAT(error.what(), testing::HasSubstr("out of memory (error 2)"));
}

TEST_F(CudaCheckTest, ClearsTheLastError) {
  gpu_.fail("set_device", 1, cudaErrorInvalidDevice);
  EXPECT_THROW(cuda_check(gpu_.cuda(), gpu_.cuda().set_device(0), "cudaSetDevice"), Error);
  EXPECT_EQ(gpu_.cuda().get_last_error(), cudaSuccess);

  gpu_.fail("set_device", 1, cudaErrorInvalidDevice);
  cuda_check_release(gpu_.cuda(), gpu_.cuda().set_device(0), "cudaSetDevice");
  EXPECT_EQ(gpu_.cuda().get_last_error(), cudaSuccess);
}

}  // namespace
}  // namespace hora::internal
