#include "core/api/requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

namespace hora {
namespace {

Request request_of(OperationKind kind, DeviceKind device) {
  Request request{"x", {}};
  request.signature.kind = kind;
  request.signature.device = device;
  return request;
}

using enum OperationKind;

TEST(CheckPath, OtherSetsTakeDeviceTensorsForExchangesAlone) {
  for (const OperationKind kind : {allreduce, broadcast}) {
    try {
      check_path(request_of(kind, DeviceKind::cuda), 3);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_EQ(error.tensor(), "x");
      EXPECT_THAT(error.what(), testing::HasSubstr("in set 3 give it a tensor on cpu"));
    }
  }
  for (const OperationKind kind : {allgather, alltoall, reduce_scatter}) {
    EXPECT_NO_THROW(check_path(request_of(kind, DeviceKind::cuda), 3));
  }
}

TEST(CheckPath, TheWorldAndTheCpuTakeAll) {
  EXPECT_NO_THROW(check_path(request_of(allreduce, DeviceKind::cuda), 0));
  EXPECT_NO_THROW(check_path(request_of(allreduce, DeviceKind::cpu), 3));
}

}  // namespace
}  // namespace hora
