// A call fails on one rank in an exchange on its GPU: it says which, and nothing is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <atomic>
#include <optional>
#include <thread>

#include "tests/ops/nccl/gpu_exchange.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::DeviceTensor;
using test::Exchange;
using test::GpuWorld;
using test::Pending;
using enum OperationKind;

struct Fault {
  const char* call;
  bool nccl;
  OperationKind kind;
  bool even = true;
};

class GpuExchangeFault : public testing::TestWithParam<Fault> {};

/// Of two ranks.
Exchange exchange_of(const Fault& fault) {
  Exchange exchange{.kind = fault.kind, .columns = 10};
  if (fault.kind == reduce_scatter) exchange.prescale = exchange.postscale = 0.5;
  for (const std::int64_t rank : {0, 1}) {
    const std::int64_t rows = fault.even ? 4 : fault.kind == reduce_scatter ? 5 : 4 + rank;
    exchange.extents.push_back({rows});
    if (fault.kind == alltoall) exchange.extents.back() = {rows - 2, 2};
    exchange.values.emplace_back(static_cast<std::size_t>(rows * 40));
  }
  return exchange;
}

/// Ends early where `over` says that the other rank has failed.
std::optional<Error> run_rounds(GpuWorld& world, int rank, const Exchange& exchange,
                                const DeviceTensor& input, int rounds, std::atomic<bool>& over) {
  try {
    for (int round = 0; round < rounds; ++round) {
      const Pending pending = submit_on_gpu(world, rank, exchange, "x", input);
      while (!pending.submission->finished()) {
        if (over.load()) return std::nullopt;
        std::this_thread::yield();
      }
      world.engine(rank).wait(*pending.submission);
      pending.result->collect();
    }
  } catch (const Error& error) {
    return detached(error);
  }
  return std::nullopt;
}

TEST_P(GpuExchangeFault, IsNamedAndFreesEveryGpu) {
  const Fault& fault = GetParam();
  const Exchange exchange = exchange_of(fault);
  test::GpuWorldOptions options{.node_sizes = {2}};
  options.settings.device_timeout = std::chrono::milliseconds(400);
  options.settings.log_level = LogLevel::off;
  options.gpu.seed = test::seed();
  for (int nth = 1; nth <= 2; ++nth) {
    GpuWorld world(options);
    std::vector<std::unique_ptr<DeviceTensor>> inputs;
    for (int rank = 0; rank < 2; ++rank) {
      inputs.push_back(std::make_unique<DeviceTensor>(
          world.gpu(rank), exchange.type, exchange.values[static_cast<std::size_t>(rank)]));
    }
    std::atomic<bool> over{false};
    std::vector<std::optional<Error>> errors(2);
    const auto run = [&](int rounds) {
      world.on_all_ranks([&](int rank) {
        const auto own = static_cast<std::size_t>(rank);
        errors[own] = run_rounds(world, rank, exchange, *inputs[own], rounds, over);
        if (rank == 1 && errors[own]) over.store(true);
      });
    };
    run(2);
    for (const auto& error : errors) ASSERT_FALSE(error) << "before the fault: " << error->what();
    if (fault.nccl) {
      world.gpu(1).nccl_fail(fault.call, nth, ncclSystemError);
    } else {
      world.gpu(1).fail(fault.call, nth, cudaErrorLaunchFailure);
    }
    run(20);
    ASSERT_TRUE(errors[1]) << "the fault had no consequence";
    EXPECT_EQ(errors[1]->code(), ErrorCode::transport);
    EXPECT_THAT(errors[1]->what(), testing::HasSubstr(" failed: "));
    world.end();
    inputs.clear();
    EXPECT_THAT(world.ranks_with_leftovers(), testing::IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Calls, GpuExchangeFault,
    testing::Values(
        Fault{"all_gather", true, allgather}, Fault{"broadcast", true, allgather, false},
        Fault{"send", true, alltoall}, Fault{"recv", true, alltoall},
        Fault{"group_start", true, alltoall}, Fault{"group_end", true, alltoall},
        Fault{"reduce_scatter", true, reduce_scatter}, Fault{"reduce", true, reduce_scatter, false},
        Fault{"malloc_from_pool_async", false, reduce_scatter},
        Fault{"batched_copy", false, reduce_scatter}, Fault{"stream_wait_event", false, alltoall},
        Fault{"event_record", false, alltoall}),
    [](const auto& tested) {
      return std::string(tested.param.nccl ? "nccl_" : "cuda_") + tested.param.call;
    });

TEST(GpuExchangeMemory, AResultThatDoesNotFitFailsThatCallAloneOnEveryRank) {
  for (const OperationKind kind : {allgather, alltoall, reduce_scatter}) {
    test::GpuWorldOptions options{.node_sizes = {3}};
    options.settings.log_level = LogLevel::off;
    GpuWorld world(options);
    test::expect_to_fail_alone_without_memory(world, kind, 1);
    EXPECT_THAT(world.complaints(), testing::IsEmpty());
    world.end();
    EXPECT_THAT(world.ranks_with_leftovers(), testing::IsEmpty());
  }
}

}  // namespace
}  // namespace hora::internal
