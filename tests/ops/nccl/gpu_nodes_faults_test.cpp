// Where one NCCL communicator spans nodes, and a rank fails, NCCL tells the others sooner than hora
// can say why: all of them end with that one cause nevertheless.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <optional>
#include <thread>

#include "tests/ops/nccl/gpu_world.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::DeviceTensor;
using test::GpuWorld;
using test::GpuWorldOptions;

/// With what all of it ends, of which the wait for a cause is the longest part.
constexpr auto kEndsWithin = std::chrono::seconds(10);

class GpuNodesFault : public testing::TestWithParam<std::vector<int>> {
 protected:
  static GpuWorldOptions options() {
    GpuWorldOptions result{.node_sizes = GetParam(), .by_nccl = true};
    result.settings.device_timeout = std::chrono::seconds(30);
    result.settings.log_level = LogLevel::off;
    result.gpu.seed = test::seed();
    result.gpu.peers_notice_aborts = true;
    return result;
  }
  /// Collectives on every rank until each has an error.
  static std::vector<std::optional<Error>> run(GpuWorld& world) {
    std::vector<std::optional<Error>> errors(static_cast<std::size_t>(world.size()));
    const auto end = std::chrono::steady_clock::now() + kEndsWithin;
    world.on_all_ranks([&](int rank) {
      DeviceTensor tensor(world.gpu(rank), DataType::int32, std::vector<std::byte>(4000));
      const Signature signature = tensor.signature(OperationKind::allreduce, ReduceOp::sum);
      try {
        while (std::chrono::steady_clock::now() < end) {
          world.engine(rank).submit_and_wait("x", signature, tensor.data(), tensor.stream());
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = detached(error);
      }
    });
    return errors;
  }
  static void expect_one_cause(const std::vector<std::optional<Error>>& errors,
                               const std::string& text) {
    for (std::size_t rank = 0; rank < errors.size(); ++rank) {
      ASSERT_TRUE(errors[rank]) << "rank " << rank << " has no error";
      EXPECT_EQ(errors[rank]->code(), ErrorCode::transport);
      EXPECT_STREQ(errors[rank]->what(), errors.back()->what()) << "rank " << rank;
    }
    EXPECT_THAT(errors.back()->what(), testing::HasSubstr(text));
  }
};

TEST_P(GpuNodesFault, TheCallThatFailsIsTheOneCauseOnEveryRank) {
  for (const char* call : {"all_reduce", "group_end"}) {
    for (const bool by_first : {false, true}) {
      GpuWorld world(options());
      const int culprit = by_first ? 0 : world.size() - 1;
      world.gpu(culprit).nccl_fail(call, 5, ncclSystemError);
      expect_one_cause(run(world), " failed: ");
      EXPECT_EQ(world.gpu(culprit).live().communicators, 0) << "aborted";
    }
  }
}

TEST_P(GpuNodesFault, ATimeLimitIsReportedOnceForAllNodes) {
  GpuWorldOptions late = options();
  late.settings.device_timeout = std::chrono::milliseconds(300);
  GpuWorld world(late);
  world.gpu(world.size() - 1).hold_launches();
  expect_one_cause(run(world), "has made no progress");
  world.gpu(world.size() - 1).resume_launches();
}

TEST_P(GpuNodesFault, WithoutACauseNcclsOwnErrorIsReportedOnce) {
  GpuWorld world(options());
  for (int rank = 0; rank < world.size(); ++rank) world.gpu(rank).async_error(ncclRemoteError);
  expect_one_cause(run(world), "remote process exited");
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuNodesFault,
                         testing::Values(std::vector{1, 1}, std::vector{2, 2},
                                         std::vector{1, 1, 1, 1}),
                         [](const auto& tested) {
                           std::string name = "nodes";
                           for (const int size : tested.param) name += "_" + std::to_string(size);
                           return name;
                         });

}  // namespace
}  // namespace hora::internal
