// One NCCL communicator over the ranks of several nodes (HORA_GPU_NETWORK=nccl): which calls ranks
// make, beside what else is under way. What collectives give is in tests/conformance.
//
// Where one NCCL communicator spans nodes, and a rank fails, NCCL tells the others sooner than hora
// can say why: all of them end with that one cause nevertheless.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "tests/ops/nccl/gpu_exchange.h"
#include "tests/ops/nccl/gpu_world.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

using test::DeviceTensor;
using test::Exchange;
using test::GpuWorld;
using test::Pending;
using enum OperationKind;

constexpr OperationKind kExchanges[] = {allgather, alltoall, reduce_scatter};
constexpr const char* kCalls[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter",
                                  "reduce",     "send",      "recv"};

std::vector<std::byte> numbers(std::size_t count, std::int32_t value) {
  const std::vector<std::int32_t> values(count, value);
  std::vector<std::byte> bytes(count * sizeof(std::int32_t));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class GpuNodes : public testing::TestWithParam<std::vector<int>> {
 protected:
  static test::GpuWorldOptions options() {
    test::GpuWorldOptions result{.node_sizes = GetParam(), .by_nccl = true};
    result.settings.chunk_size = 4096;
    result.settings.device_timeout = std::chrono::seconds(30);
    result.gpu.seed = test::seed();
    result.gpu.longest_delay = std::chrono::microseconds(100);
    return result;
  }
  static void expect_no_complaints(GpuWorld& world) {
    EXPECT_THAT(world.complaints(), testing::IsEmpty());
    world.end();
    EXPECT_THAT(world.ranks_with_leftovers(), testing::IsEmpty());
  }
};

/// What one rank has submitted and not waited for yet.
struct OnGpu {
  std::unique_ptr<DeviceTensor> tensor;
  std::shared_ptr<Operation> submission;
  std::size_t count = 0;
  std::int32_t expected = 0;
};
struct OnHost {
  std::vector<std::int32_t> values;
  std::shared_ptr<Operation> submission;
};

// The fake NCCL complains where two ranks give a communicator different calls, in number or kind.
TEST_P(GpuNodes, RanksGiveOneCommunicatorTheSameCallsWhateverTheirOrder) {
  GpuWorld world(options());
  const int ranks = world.size();
  const std::int32_t sum = ranks * (ranks + 1) / 2;
  constexpr int kTensors = 12;
  world.on_all_ranks([&](int rank) {
    std::mt19937_64 random(test::seed() + static_cast<std::uint64_t>(rank));
    Engine& engine = world.engine(rank);
    std::vector<int> order(kTensors);
    std::iota(order.begin(), order.end(), 0);
    for (int round = 0; round < 6; ++round) {
      std::shuffle(order.begin(), order.end(), random);
      std::vector<OnGpu> on_gpu;
      std::vector<OnHost> on_host(kTensors);
      for (const int i : order) {
        const std::string name = std::to_string(i);
        OnGpu& own = on_gpu.emplace_back();
        own.count = static_cast<std::size_t>(1 + 700 * i);
        own.tensor = std::make_unique<DeviceTensor>(world.gpu(rank), DataType::int32,
                                                    numbers(own.count, rank + 1));
        const bool broadcasts = i % 3 == 0;
        const int root = i % ranks;
        own.expected = broadcasts ? root + 1 : sum;
        own.submission = engine.submit(
            {"gpu" + name,
             own.tensor->signature(broadcasts ? broadcast : allreduce, ReduceOp::sum, root),
             own.tensor->data(), own.tensor->stream()});
        OnHost& host = on_host[static_cast<std::size_t>(i)];
        host.values.assign(own.count, rank + 1);
        Signature signature = own.tensor->signature(allreduce, ReduceOp::sum);
        signature.device = DeviceKind::cpu;
        host.submission = engine.submit(
            {"host" + name, signature, reinterpret_cast<std::byte*>(host.values.data())});
      }
      for (OnGpu& own : on_gpu) {
        engine.wait(*own.submission);
        EXPECT_EQ(own.tensor->read(), numbers(own.count, own.expected));
      }
      for (OnHost& host : on_host) {
        engine.wait(*host.submission);
        EXPECT_THAT(host.values, testing::Each(sum));
      }
    }
  });
  for (const char* call : kCalls) {
    for (int rank = 1; rank < ranks; ++rank) {
      EXPECT_EQ(world.gpu(rank).nccl_count(call), world.gpu(0).nccl_count(call)) << call;
    }
  }
  EXPECT_GT(world.gpu(0).nccl_count("all_reduce"), 0);
  EXPECT_EQ(world.gpu(0).nccl_count("reduce_scatter"), 0) << "units run whole";
  expect_no_complaints(world);
}

TEST_P(GpuNodes, ExchangesStayOnTheGpus) {
  auto random = test::generator();
  GpuWorld world(options());
  for (int round = 0; round < 4; ++round) {
    for (const OperationKind kind : kExchanges) {
      const Exchange exchange = test::random_gpu_exchange(kind, world.size(), random);
      world.on_all_ranks([&](int rank) {
        const DeviceTensor input(world.gpu(rank), exchange.type,
                                 exchange.values[static_cast<std::size_t>(rank)]);
        const Pending pending = submit_on_gpu(world, rank, exchange, "x", input);
        EXPECT_TRUE(pending.submission->memory.work()) << exchange.text();
        world.engine(rank).wait(*pending.submission);
        pending.result->collect();
        bytes_of(world, rank, *pending.result);
      });
    }
  }
  expect_no_complaints(world);
}

TEST_P(GpuNodes, AResultThatDoesNotFitFailsThatCallAloneOnEveryRank) {
  for (const OperationKind kind : kExchanges) {
    auto lacking = options();
    lacking.settings.log_level = LogLevel::off;
    GpuWorld world(lacking);
    expect_to_fail_alone_without_memory(world, kind, world.size() - 1);
    expect_no_complaints(world);
  }
}

/// The ranks of each node, and one rank of each, as sets.
std::vector<std::vector<int>> sets_of(const std::vector<int>& node_sizes) {
  std::vector<std::vector<int>> sets;
  std::vector<int> over_nodes;
  int first = 0;
  for (const int size : node_sizes) {
    auto& of_node = sets.emplace_back(static_cast<std::size_t>(size));
    std::iota(of_node.begin(), of_node.end(), first);
    over_nodes.push_back(first);
    first += size;
  }
  sets.push_back(over_nodes);
  return sets;
}

/// `rounds` sums of ones in a set of `members` ranks.
void sum_ones(GpuWorld& world, int rank, ProcessSet set, std::size_t members, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    DeviceTensor tensor(world.gpu(rank), DataType::int32, numbers(2000, 1));
    const auto submission = world.engine(rank).submit(
        {"x", tensor.signature(allreduce, ReduceOp::sum), tensor.data(), tensor.stream()}, set);
    world.engine(rank).wait(*submission);
    ASSERT_EQ(tensor.read(), numbers(2000, static_cast<std::int32_t>(members)));
  }
}

// Their kernels wait for one another's ranks on the same streams: were two nodes' orders to cross,
// they would wait for ever.
TEST_P(GpuNodes, SetsInNodesAndOverNodesTakeTurnsWithTheWorld) {
  GpuWorld world(options());
  const auto sets = sets_of(GetParam());
  constexpr int kRounds = 40;
  world.on_all_ranks([&](int rank) {
    Engine& engine = world.engine(rank);
    std::vector<std::jthread> threads;
    for (const auto& members : sets) {
      const ProcessSet set = engine.add_set(members);
      if (std::ranges::find(members, rank) == members.end()) continue;
      threads.emplace_back([&world, rank, set, size = members.size()] {
        sum_ones(world, rank, set, size, kRounds);
      });
    }
    sum_ones(world, rank, kWorld, static_cast<std::size_t>(world.size()), kRounds);
  });
  expect_no_complaints(world);
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuNodes,
                         testing::Values(std::vector{1, 1}, std::vector{2, 1}, std::vector{2, 2},
                                         std::vector{1, 3}, std::vector{1, 2, 1}),
                         [](const auto& tested) {
                           std::string name = "nodes";
                           for (const int size : tested.param) name += "_" + std::to_string(size);
                           return name;
                         });

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
