// A call into CUDA or NCCL fails on one rank: it says which, no GPU waits for ever, and
// nothing is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <atomic>
#include <optional>
#include <thread>

#include "tests/ops/nccl/gpu_world.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::DeviceTensor;
using test::GpuWorld;

constexpr std::size_t kElements = 3000;
constexpr auto kFreeWithin = std::chrono::seconds(10);

struct Fault {
  const char* call;
  bool nccl;
  std::vector<int> nodes;
  OperationKind kind = OperationKind::allreduce;
  bool device_staging = false;
  bool by_nccl = false;
};

std::string fault_name(const testing::TestParamInfo<Fault>& info) {
  std::string name = std::string(info.param.nccl ? "nccl_" : "cuda_") + info.param.call;
  for (const int size : info.param.nodes) name += "_" + std::to_string(size);
  return name + (info.param.kind == OperationKind::broadcast ? "_broadcast" : "") +
         (info.param.device_staging ? "_device_staging" : "") +
         (info.param.by_nccl ? "_by_nccl" : "");
}

class GpuFault : public testing::TestWithParam<Fault> {
 protected:
  static test::GpuWorldOptions options() {
    test::GpuWorldOptions result{.node_sizes = GetParam().nodes,
                                 .device_staging = GetParam().device_staging,
                                 .by_nccl = GetParam().by_nccl};
    result.settings.small_message = 0;
    result.settings.chunk_size = 4096;
    result.settings.device_timeout = std::chrono::milliseconds(400);
    result.settings.log_level = LogLevel::off;
    result.gpu.seed = test::seed();
    return result;
  }
};

/// The outcome of one rank's rounds.
struct Outcome {
  std::optional<Error> error;
  int rounds = 0;
};

// Other nodes' ranks wait for a message that never comes: a real job is aborted by the rank that
// has failed, here `over` says so.
Outcome run_rounds(GpuWorld& world, int rank, OperationKind kind, DeviceTensor& tensor, int rounds,
                   std::atomic<bool>& over) {
  Outcome outcome;
  Engine& engine = world.engine(rank);
  try {
    for (; outcome.rounds < rounds; ++outcome.rounds) {
      const auto submission =
          engine.submit("x", tensor.signature(kind, ReduceOp::sum), tensor.data(), tensor.stream());
      while (!submission->finished()) {
        if (over.load()) return outcome;
        std::this_thread::yield();
      }
      engine.wait(*submission);
    }
  } catch (const Error& error) {
    outcome.error = detached(error);
  }
  return outcome;
}

TEST_P(GpuFault, IsNamedAndFreesEveryGpu) {
  const Fault& fault = GetParam();
  for (int nth = 1; nth <= 3; ++nth) {
    GpuWorld world(options());
    const int culprit = world.size() - 1;
    std::vector<std::unique_ptr<DeviceTensor>> tensors;
    for (int rank = 0; rank < world.size(); ++rank) {
      tensors.push_back(std::make_unique<DeviceTensor>(world.gpu(rank), DataType::float32,
                                                       std::vector<std::byte>(kElements * 4)));
    }
    std::atomic<bool> over{false};
    std::vector<Outcome> outcomes(static_cast<std::size_t>(world.size()));
    const auto run = [&](int rounds) {
      world.on_all_ranks([&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        outcomes[r] = run_rounds(world, rank, fault.kind, *tensors[r], rounds, over);
        if (rank == culprit && outcomes[r].error) over.store(true);
      });
    };
    run(2);
    for (const Outcome& outcome : outcomes) ASSERT_FALSE(outcome.error) << "before the fault";
    if (fault.nccl) {
      world.gpu(culprit).nccl_fail(fault.call, nth, ncclSystemError);
    } else {
      world.gpu(culprit).fail(fault.call, nth, cudaErrorLaunchFailure);
    }
    run(20);
    const Outcome& failed = outcomes[static_cast<std::size_t>(culprit)];
    ASSERT_TRUE(failed.error) << "the fault had no consequence";
    EXPECT_EQ(failed.error->code(), ErrorCode::transport);
    EXPECT_THAT(failed.error->what(), testing::HasSubstr(" failed: "));

    const auto begin = std::chrono::steady_clock::now();
    for (auto& tensor : tensors) {
      try {
        tensor->read();  // returns once the GPU is free
      } catch (const Error&) {
        // The fake's fault may show here as well.
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kFreeWithin);
    world.end();
    tensors.clear();
    for (int rank = 0; rank <= culprit; ++rank) {
      EXPECT_EQ(world.gpu(rank).live(), test::LiveHandles{}) << "rank " << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Calls, GpuFault,
    testing::Values(Fault{"event_record", false, {2}}, Fault{"stream_wait_event", false, {2}},
                    Fault{"all_reduce", true, {2}}, Fault{"group_start", true, {2}},
                    Fault{"group_end", true, {2}}, Fault{"comm_get_async_error", true, {2}},
                    Fault{"broadcast", true, {2}, OperationKind::broadcast},
                    Fault{"event_record", false, {2, 2}}, Fault{"stream_wait_event", false, {2, 2}},
                    Fault{"event_query", false, {2, 2}}, Fault{"memcpy_async", false, {2, 2}},
                    Fault{"batched_copy", false, {2, 2}}, Fault{"reduce_scatter", true, {2, 2}},
                    Fault{"all_gather", true, {2, 2}}, Fault{"group_end", true, {2, 2}},
                    Fault{"reduce", true, {1, 2}}, Fault{"broadcast", true, {1, 2}},
                    Fault{"all_gather", true, {2, 2}, OperationKind::broadcast}),
    fault_name);

Fault device_staged(const char* call, bool nccl = false,
                    OperationKind kind = OperationKind::allreduce) {
  return {call, nccl, {2, 2}, kind, true};
}
INSTANTIATE_TEST_SUITE_P(
    DeviceStaging, GpuFault,
    testing::Values(device_staged("device_reduce"), device_staged("event_record"),
                    device_staged("event_query"), device_staged("get_device"),
                    device_staged("batched_copy"), device_staged("reduce_scatter", true),
                    device_staged("all_gather", true),
                    device_staged("all_gather", true, OperationKind::broadcast)),
    fault_name);

Fault by_nccl(const char* call, bool nccl = true, OperationKind kind = OperationKind::allreduce) {
  return {call, nccl, {2, 2}, kind, false, true};
}
INSTANTIATE_TEST_SUITE_P(ByNccl, GpuFault,
                         testing::Values(by_nccl("all_reduce"), by_nccl("group_start"),
                                         by_nccl("group_end"), by_nccl("comm_get_async_error"),
                                         by_nccl("event_record", false),
                                         by_nccl("stream_wait_event", false),
                                         by_nccl("broadcast", true, OperationKind::broadcast)),
                         fault_name);

TEST(GpuFaults, APeerThatNeverComesEndsInAnErrorWithinTheTimeout) {
  Settings settings;
  settings.device_timeout = std::chrono::milliseconds(300);
  settings.log_level = LogLevel::off;
  GpuWorld world({.node_sizes = {2}, .settings = settings, .gpu = {}});
  std::vector<std::unique_ptr<DeviceTensor>> tensors;
  for (int rank = 0; rank < 2; ++rank) {
    tensors.push_back(std::make_unique<DeviceTensor>(world.gpu(rank), DataType::float32,
                                                     std::vector<std::byte>(kElements * 4)));
    tensors.back()->read();
  }
  world.gpu(1).hold();  // its GPU hangs
  world.on_all_ranks([&](int rank) {
    DeviceTensor& tensor = *tensors[static_cast<std::size_t>(rank)];
    world.engine(rank).submit_and_wait("x",
                                       tensor.signature(OperationKind::allreduce, ReduceOp::sum),
                                       tensor.data(), tensor.stream());
  });
  tensors[0]->read();  // hangs until the communicator is aborted
  const auto deadline = std::chrono::steady_clock::now() + kFreeWithin;
  while (!world.engine(0).aborted() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  test::expect_error(ErrorCode::transport, testing::HasSubstr("no progress"), [&] {
    world.engine(0).submit("y", tensors[0]->signature(OperationKind::allreduce, ReduceOp::sum),
                           tensors[0]->data(), tensors[0]->stream());
  });
  world.gpu(1).resume();
}

TEST(GpuFaults, AnAsynchronousErrorFailsWhatIsPending) {
  GpuWorld world({.node_sizes = {2}, .settings = {}, .gpu = {}});
  std::vector<std::unique_ptr<DeviceTensor>> tensors;
  for (int rank = 0; rank < 2; ++rank) {
    tensors.push_back(std::make_unique<DeviceTensor>(world.gpu(rank), DataType::float32,
                                                     std::vector<std::byte>(kElements * 4)));
    world.gpu(rank).async_error(ncclRemoteError);
  }
  world.on_all_ranks([&](int rank) {
    DeviceTensor& tensor = *tensors[static_cast<std::size_t>(rank)];
    test::expect_error(ErrorCode::transport, [&] {
      world.engine(rank).submit_and_wait("x",
                                         tensor.signature(OperationKind::allreduce, ReduceOp::sum),
                                         tensor.data(), tensor.stream());
    });
  });
}

TEST(GpuFaults, WithoutMemoryABufferIsRefusedAndTheRankGoesOn) {
  GpuWorld world({.node_sizes = {1}, .settings = {}, .gpu = {}});
  world.gpu(0).nccl_fail("mem_alloc", 1, ncclUnhandledCudaError);
  test::expect_error(ErrorCode::out_of_memory, testing::HasSubstr("123456"),
                     [&] { world.engine(0).allocate_on_device(123456); });
  EXPECT_EQ(world.gpu(0).cuda().get_last_error(), cudaSuccess) << "whoever asks next is not told";
  std::byte* const memory = world.engine(0).allocate_on_device(123456);
  EXPECT_NE(memory, nullptr);
  world.engine(0).release_on_device(memory);
}

}  // namespace
}  // namespace hora::internal
