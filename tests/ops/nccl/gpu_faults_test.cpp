// A call into CUDA or NCCL fails on one rank: it says which, no GPU waits for ever, and nothing is
// left behind.
#include <hora/error.h>

#include <atomic>
#include <initializer_list>
#include <optional>
#include <thread>

#include "tests/ops/nccl/gpu_ranks.h"
#include "tests/support/expect_error.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::Bytes;
using test::DeviceTensor;
using test::GpuWorld;
using test::GpuWorldOptions;
using test::quiet;
using test::tensors_of;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t kRows = 300;
constexpr auto kFreeWithin = 10s;
const Bytes kZeros(kRows* test::kRowBytes);

struct Fault {
  std::vector<int> nodes;
  OperationKind kind = OperationKind::allreduce;
  bool even = true;  ///< of an exchange of two ranks
  bool device_staging = false;
  bool by_nccl = false;
  const char* call = nullptr;
  bool nccl = false;
};

std::vector<Fault> all_faults() {
  using enum OperationKind;
  using Calls = std::initializer_list<const char*>;
  std::vector<Fault> all;
  const auto add = [&](Fault fault, Calls of_cuda, Calls of_nccl) {
    for (const Calls& calls : {of_cuda, of_nccl}) {
      for (const char* call : calls) {
        fault.call = call;
        all.push_back(fault);
      }
      fault.nccl = true;
    }
  };
  const Calls kOfSums = {"all_reduce", "group_start", "group_end", "comm_get_async_error"};
  add({.nodes = {2}}, {"event_record", "stream_wait_event"}, kOfSums);
  add({.nodes = {2}, .kind = broadcast}, {}, {"broadcast"});
  add({.nodes = {2, 2}},
      {"event_record", "stream_wait_event", "event_query", "memcpy_async", "batched_copy"},
      {"reduce_scatter", "all_gather", "group_end"});
  add({.nodes = {1, 2}}, {}, {"reduce", "broadcast"});
  add({.nodes = {2, 2}, .kind = broadcast}, {}, {"all_gather"});
  add({.nodes = {2, 2}, .device_staging = true},
      {"device_reduce", "event_record", "event_query", "get_device", "batched_copy"},
      {"reduce_scatter", "all_gather"});
  add({.nodes = {2, 2}, .kind = broadcast, .device_staging = true}, {}, {"all_gather"});
  add({.nodes = {2, 2}, .by_nccl = true}, {"event_record", "stream_wait_event"}, kOfSums);
  add({.nodes = {2, 2}, .kind = broadcast, .by_nccl = true}, {}, {"broadcast"});
  add({.nodes = {2}, .kind = allgather}, {}, {"all_gather"});
  add({.nodes = {2}, .kind = allgather, .even = false}, {}, {"broadcast"});
  add({.nodes = {2}, .kind = alltoall}, {"stream_wait_event", "event_record"},
      {"send", "recv", "group_start", "group_end"});
  add({.nodes = {2}, .kind = reduce_scatter}, {"malloc_from_pool_async", "batched_copy"},
      {"reduce_scatter"});
  add({.nodes = {2}, .kind = reduce_scatter, .even = false}, {}, {"reduce"});
  return all;
}

class GpuFault : public testing::TestWithParam<Fault> {
 protected:
  static test::PendingExchange submit(GpuWorld& world, int rank, const DeviceTensor& tensor) {
    const Fault& fault = GetParam();
    if (!is_exchange(fault.kind)) {
      return {world.engine(rank).submit({"x", tensor.signature(fault.kind, ReduceOp::sum),
                                         tensor.data(), tensor.stream()}),
              nullptr};
    }
    std::vector<std::int64_t> rows(1, kRows);
    if (fault.kind == OperationKind::alltoall) rows.assign(2, kRows / 2);
    if (!fault.even) rows[0] -= fault.kind == OperationKind::reduce_scatter ? 1 : rank;
    return submit_exchange(world, rank, fault.kind, rows, tensor);
  }
  /// Other nodes' ranks wait for a message that never comes: a real job is aborted by the rank that
  /// has failed, here `over` says so.
  static std::optional<Error> run_rounds(GpuWorld& world, int rank, const DeviceTensor& tensor,
                                         int rounds, const std::atomic<bool>& over) {
    try {
      for (int round = 0; round < rounds; ++round) {
        const test::PendingExchange pending = submit(world, rank, tensor);
        while (!pending.operation->finished()) {
          if (over.load()) return std::nullopt;
          std::this_thread::yield();
        }
        world.engine(rank).wait(*pending.operation);
        if (pending.result) pending.result->collect();
      }
    } catch (const Error& error) {
      return detached(error);
    }
    return std::nullopt;
  }
};

TEST_P(GpuFault, IsNamedAndFreesEveryGpu) {
  const Fault& fault = GetParam();
  GpuWorldOptions options = quiet(fault.nodes, 400ms);
  options.device_staging = fault.device_staging;
  options.by_nccl = fault.by_nccl;
  for (int nth = 1; nth <= 3; ++nth) {
    GpuWorld world(options);
    const int culprit = world.size() - 1;
    auto tensors = tensors_of(world, kZeros);
    std::atomic<bool> over{false};
    std::vector<std::optional<Error>> errors(tensors.size());
    const auto run = [&](int rounds) {
      world.on_all_ranks([&](int rank) {
        const auto own = static_cast<std::size_t>(rank);
        errors[own] = run_rounds(world, rank, *tensors[own], rounds, over);
        if (rank == culprit && errors[own]) over.store(true);
      });
    };
    run(2);
    for (const auto& error : errors) ASSERT_FALSE(error) << "before the fault: " << error->what();
    if (fault.nccl) {
      world.gpu(culprit).nccl_fail(fault.call, nth, ncclSystemError);
    } else {
      world.gpu(culprit).fail(fault.call, nth, cudaErrorLaunchFailure);
    }
    run(20);
    ASSERT_TRUE(errors.back()) << "the fault had no consequence";
    EXPECT_EQ(errors.back()->code(), ErrorCode::transport);
    EXPECT_THAT(errors.back()->what(), HasSubstr(" failed: "));

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
    EXPECT_THAT(world.ranks_with_leftovers(), IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(Calls, GpuFault, testing::ValuesIn(all_faults()), [](const auto& tested) {
  const Fault& fault = tested.param;
  std::string name = std::string(fault.nccl ? "nccl_" : "cuda_") + fault.call;
  for (const int size : fault.nodes) name += "_" + std::to_string(size);
  name += "_" + std::string(name_of(fault.kind)) + (fault.even ? "" : "_uneven");
  std::ranges::replace(name, '-', '_');
  return name + (fault.device_staging ? "_device_staging" : "") + (fault.by_nccl ? "_by_nccl" : "");
});
TEST(GpuFaults, WithoutMemoryABufferIsRefusedAndTheRankGoesOn) {
  GpuWorld world({.node_sizes = {1}});
  world.gpu(0).nccl_fail("mem_alloc", 1, ncclUnhandledCudaError);
  test::expect_error(ErrorCode::out_of_memory,
                     testing::AllOf(HasSubstr("ncclMemAlloc of 123456 bytes failed"),
                                    HasSubstr("NCCL_CUMEM_ENABLE=0")),
                     [&] { world.engine(0).allocate_on_device(123456); });
  EXPECT_EQ(world.gpu(0).cuda().get_last_error(), cudaSuccess) << "whoever asks next is not told";
  std::byte* const memory = world.engine(0).allocate_on_device(123456);
  EXPECT_NE(memory, nullptr);
  world.engine(0).release_on_device(memory);
}

// An even exchange for whose result one rank has no memory fails on all; the next one does not.
TEST(GpuFaults, AResultThatDoesNotFitFailsThatCallAloneOnEveryRank) {
  using enum OperationKind;
  for (const auto& nodes : {std::vector{3}, std::vector{1, 1}, std::vector{1, 2, 1}}) {
    for (const OperationKind kind : {allgather, alltoall, reduce_scatter}) {
      GpuWorldOptions options = quiet(nodes, 30s);
      options.by_nccl = nodes.size() > 1;
      GpuWorld world(options);
      const int ranks = world.size();
      const int culprit = ranks - 1;
      const std::vector<std::int64_t> rows(kind == alltoall ? static_cast<std::size_t>(ranks) : 1,
                                           kind == alltoall ? 2 : 2 * ranks);
      const int result_rows = kind == allgather  ? 2 * ranks * ranks
                              : kind == alltoall ? 2 * ranks
                                                 : 2;
      for (const int attempt : {1, 2}) {
        world.gpu(culprit).fail("malloc_from_pool_async", attempt, cudaErrorMemoryAllocation);
      }
      auto inputs = tensors_of(world, kZeros);
      world.on_all_ranks([&](int rank) {
        const DeviceTensor& input = *inputs[static_cast<std::size_t>(rank)];
        const auto run = [&] {
          const auto pending = submit_exchange(world, rank, kind, rows, input);
          world.engine(rank).wait(*pending.operation);
          pending.result->collect();
        };
        test::expect_error(
            ErrorCode::out_of_memory,
            HasSubstr("the GPU of rank " + std::to_string(culprit) +
                      " of the set has no memory for its result of " +
                      std::to_string(static_cast<std::size_t>(result_rows) * test::kRowBytes)),
            run);
        EXPECT_NO_THROW(run());
      });
      inputs.clear();
      test::expect_clean_end(world);
    }
  }
}

// The rank that fails has no turn any more: those that wait for it get its error.
TEST(GpuSetFaults, ARankThatFailsToConnectFreesTheOthers) {
  for (const char* call : {"initialisation", "comm_init_rank_config", "all_reduce"}) {
    GpuWorld world(quiet({3}, 400ms));
    world.on_all_ranks([&](int rank) {
      Engine& engine = world.engine(rank);
      const ProcessSet set = engine.sets().add({0, 1, 2});
      if (rank == 2) world.gpu(rank).nccl_fail(call, 1, ncclSystemError);
      DeviceTensor tensor(world.gpu(rank), DataType::int32, Bytes(400, std::byte{1}));
      const Signature signature = tensor.signature(OperationKind::allreduce, ReduceOp::sum);
      const auto begin = std::chrono::steady_clock::now();
      test::expect_error(ErrorCode::transport, [&] {
        // The first one may end before its kernel, which never does.
        for (int i = 0; i < 1000; ++i) {
          engine.wait(*engine.submit({"x", signature, tensor.data(), tensor.stream()}, set));
          std::this_thread::sleep_for(10ms);
        }
      });
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s) << call;
    });
  }
}

/// Where one NCCL communicator spans nodes, and a rank fails, NCCL tells the others sooner than
/// hora can say why: all of them end with that one cause nevertheless.
class GpuNodesFault : public testing::TestWithParam<std::vector<int>> {
 protected:
  static GpuWorldOptions options(std::chrono::milliseconds timeout = 30s) {
    GpuWorldOptions result = quiet(GetParam(), timeout);
    result.by_nccl = true;
    result.gpu.peers_notice_aborts = true;
    return result;
  }
  /// Collectives on every rank until each has an error, the same one.
  static void expect_one_cause(GpuWorld& world, const std::string& text) {
    std::vector<std::optional<Error>> errors(static_cast<std::size_t>(world.size()));
    const auto end = std::chrono::steady_clock::now() + kFreeWithin;
    world.on_all_ranks([&](int rank) {
      DeviceTensor tensor(world.gpu(rank), DataType::int32, Bytes(4000));
      const Signature signature = tensor.signature(OperationKind::allreduce, ReduceOp::sum);
      try {
        while (std::chrono::steady_clock::now() < end) {
          world.engine(rank).submit_and_wait({"x", signature, tensor.data(), tensor.stream()});
          std::this_thread::sleep_for(2ms);
        }
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = detached(error);
      }
    });
    for (std::size_t rank = 0; rank < errors.size(); ++rank) {
      ASSERT_TRUE(errors[rank]) << "rank " << rank << " has no error";
      EXPECT_EQ(errors[rank]->code(), ErrorCode::transport);
      EXPECT_STREQ(errors[rank]->what(), errors.back()->what()) << "rank " << rank;
    }
    EXPECT_THAT(errors.back()->what(), HasSubstr(text));
  }
};

TEST_P(GpuNodesFault, TheCallThatFailsIsTheOneCauseOnEveryRank) {
  for (const char* call : {"all_reduce", "group_end"}) {
    for (const bool by_first : {false, true}) {
      GpuWorld world(options());
      const int culprit = by_first ? 0 : world.size() - 1;
      world.gpu(culprit).nccl_fail(call, 5, ncclSystemError);
      expect_one_cause(world, " failed: ");
      EXPECT_EQ(world.gpu(culprit).live().communicators, 0) << "aborted";
    }
  }
}

TEST_P(GpuNodesFault, ATimeLimitIsReportedOnceForAllNodes) {
  GpuWorld world(options(300ms));
  world.gpu(world.size() - 1).hold_launches();
  expect_one_cause(world, "has made no progress");
  world.gpu(world.size() - 1).resume_launches();
}

TEST_P(GpuNodesFault, WithoutACauseNcclsOwnErrorIsReportedOnce) {
  GpuWorld world(options());
  for (int rank = 0; rank < world.size(); ++rank) world.gpu(rank).async_error(ncclRemoteError);
  expect_one_cause(world, "remote process exited");
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuNodesFault,
                         testing::Values(std::vector{1, 1}, std::vector{2, 2},
                                         std::vector{1, 1, 1, 1}));

}  // namespace
}  // namespace hora::internal
