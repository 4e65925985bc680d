// Allgather, alltoall and reduce-scatter of tensors on fake GPUs: when the host waits, and what is
// left. What they give is in tests/conformance.
//
// A call fails on one rank in an exchange on its GPU: it says which, and nothing is left behind.
#include "tests/ops/nccl/gpu_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <atomic>
#include <optional>
#include <random>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::DeviceTensor;
using test::Exchange;
using test::GpuWorld;
using test::Pending;
using Bytes = std::vector<std::byte>;

constexpr OperationKind kKinds[] = {OperationKind::allgather, OperationKind::alltoall,
                                    OperationKind::reduce_scatter};

class GpuExchange : public testing::TestWithParam<std::vector<int>> {
 protected:
  static test::GpuWorldOptions options() {
    test::GpuWorldOptions result{.node_sizes = GetParam()};
    result.settings.chunk_size = 4096;
    result.gpu.seed = test::seed();
    return result;
  }
};

TEST_P(GpuExchange, LeavesNothingBehind) {
  auto random = test::generator();
  GpuWorld world(options());
  const int ranks = world.size();
  for (const OperationKind kind : kKinds) {
    const Exchange exchange = test::random_exchange(kind, ranks, random);
    world.on_all_ranks([&](int rank) {
      const auto own = static_cast<std::size_t>(rank);
      const DeviceTensor input(world.gpu(rank), exchange.type, exchange.values[own]);
      const Pending pending = submit_on_gpu(world, rank, exchange, "x", input);
      world.engine(rank).wait(*pending.submission);
      pending.result->collect();
      bytes_of(world, rank, *pending.result);
    });
  }
  world.end();
  EXPECT_THAT(world.ranks_with_leftovers(), testing::IsEmpty());
  EXPECT_THAT(world.complaints(), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuExchange,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{3},
                                         std::vector{4}, std::vector{1, 1}, std::vector{2, 1},
                                         std::vector{2, 2}),
                         [](const auto& tested) {
                           std::string name = "nodes";
                           for (const int size : tested.param) name += "_" + std::to_string(size);
                           return name;
                         });

Exchange even_gather(int ranks) {
  Exchange exchange{.columns = 100};
  for (int rank = 0; rank < ranks; ++rank) {
    exchange.extents.push_back({10});
    exchange.values.emplace_back(4000, static_cast<std::byte>(rank + 1));
  }
  return exchange;
}

TEST(GpuExchangeOrder, TheHostDoesNotWaitForTheGpu) {
  GpuWorld world({.node_sizes = {2}});
  const Exchange exchange = even_gather(2);
  std::vector<std::unique_ptr<DeviceTensor>> inputs;
  std::vector<Pending> pending(2);
  for (int rank = 0; rank < 2; ++rank) {
    inputs.push_back(
        std::make_unique<DeviceTensor>(world.gpu(rank), DataType::float32, Bytes(4000)));
    inputs.back()->read();
    world.gpu(rank).hold();
    inputs.back()->fill(exchange.values[static_cast<std::size_t>(rank)]);  // comes late
  }
  world.on_all_ranks([&](int rank) {
    const auto own = static_cast<std::size_t>(rank);
    pending[own] = submit_on_gpu(world, rank, exchange, "x", *inputs[own]);
    world.engine(rank).wait(*pending[own].submission);  // returns, though no stream moves
    pending[own].result->collect();
  });
  for (int rank = 0; rank < 2; ++rank) world.gpu(rank).resume();
  for (int rank = 0; rank < 2; ++rank) {
    const Bytes result = bytes_of(world, rank, *pending[static_cast<std::size_t>(rank)].result);
    EXPECT_EQ(result.front(), std::byte{1});
    EXPECT_EQ(result.back(), std::byte{2});
  }
}

TEST(GpuExchangeOrder, TheSteadyStateNeverSynchronises) {
  GpuWorld world({.node_sizes = {2}});
  auto random = test::generator();
  std::vector<Exchange> program;
  for (const OperationKind kind : kKinds)
    program.push_back(test::random_gpu_exchange(kind, 2, random));
  const auto run = [&] {
    world.on_all_ranks([&](int rank) {
      for (const Exchange& exchange : program) {
        const DeviceTensor input(world.gpu(rank), exchange.type,
                                 exchange.values[static_cast<std::size_t>(rank)]);
        const int before = world.gpu(rank).count("malloc") + world.gpu(rank).count("free") +
                           world.gpu(rank).count("stream_synchronize") +
                           world.gpu(rank).count("event_synchronize");
        {
          const Pending pending = submit_on_gpu(world, rank, exchange, "x", input);
          world.engine(rank).wait(*pending.submission);
          pending.result->collect();
        }
        EXPECT_EQ(world.gpu(rank).count("malloc") + world.gpu(rank).count("free") +
                      world.gpu(rank).count("stream_synchronize") +
                      world.gpu(rank).count("event_synchronize"),
                  before)
            << exchange.text();
      }
    });
  };
  run();
  run();
}

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
