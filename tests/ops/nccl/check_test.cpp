#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include "core/engine/interfaces.h"
#include "ops/nccl/functions.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/ranks.h"

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

}  // namespace
}  // namespace hora::internal
