// Process sets on fake GPUs: each has a communicator, and all of them share the ranks' devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "tests/ops/nccl/gpu_exchange.h"
#include "tests/ops/nccl/gpu_program.h"
#include "tests/ops/nccl/gpu_world.h"
#include "tests/support/expect_error.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"

namespace hora {
namespace {

using test::DeviceTensor;
using test::Exchange;
using test::GpuWorld;
using test::Pending;
using test::Step;
using Bytes = std::vector<std::byte>;
using Random = std::mt19937_64;

constexpr OperationKind kExchanges[] = {OperationKind::allgather, OperationKind::alltoall,
                                        OperationKind::reduce_scatter};

/// What the members of a set do with each other. Values and extents by rank of the world.
struct Program {
  std::vector<int> members;
  std::vector<Step> steps;
  std::vector<Exchange> exchanges;
};

template <class T>
std::vector<T> by_world_rank(std::vector<T> by_member, const std::vector<int>& members, int ranks) {
  std::vector<T> result(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < members.size(); ++i) {
    result[static_cast<std::size_t>(members[i])] = std::move(by_member[i]);
  }
  return result;
}

Program random_program(std::vector<int> members, int ranks, int nodes, Random& random) {
  Program program{.members = std::move(members), .steps = {}, .exchanges = {}};
  const int size = static_cast<int>(program.members.size());
  program.steps = test::random_program(size, nodes, 8, random);
  for (Step& step : program.steps) {
    step.root = program.members[static_cast<std::size_t>(step.root)];
    step.values = by_world_rank(std::move(step.values), program.members, ranks);
  }
  for (const OperationKind kind : kExchanges) {
    Exchange exchange = test::random_exchange(kind, size, random);
    exchange.values = by_world_rank(std::move(exchange.values), program.members, ranks);
    exchange.extents = by_world_rank(std::move(exchange.extents), program.members, ranks);
    program.exchanges.push_back(std::move(exchange));
  }
  return program;
}

/// The members of a rank's thread in one set; its tensors go by both ways.
class Player {
 public:
  Player(GpuWorld& world, int rank, ProcessSet set, const Program& program)
      : world_(world), rank_(rank), set_(set), program_(program) {}

  void play(Random& order) {
    std::vector<std::size_t> sequence(program_.steps.size() + program_.exchanges.size());
    std::iota(sequence.begin(), sequence.end(), 0);
    std::ranges::shuffle(sequence, order);
    for (const std::size_t i : sequence) {
      i < program_.steps.size() ? submit_step(i) : submit_exchange(i - program_.steps.size());
    }
    for (const auto& submission : submissions_) world_.engine(rank_).wait(*submission);
    for (auto& [gpu, host] : results_) compare(gpu, host);
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      EXPECT_EQ(tensors_[i]->read(), *host_[i]) << "rank " << rank_ << ", set " << set_;
    }
  }

 private:
  DeviceTensor& tensor(DataType type, const Bytes& values) {
    tensors_.push_back(std::make_unique<DeviceTensor>(world_.gpu(rank_), type, values));
    host_.push_back(std::make_unique<Bytes>(values));
    return *tensors_.back();
  }

  void submit_step(std::size_t i) {
    const Step& step = program_.steps[i];
    DeviceTensor& on_gpu = tensor(step.type, step.values[static_cast<std::size_t>(rank_)]);
    Signature signature = step.signature(on_gpu);
    const std::string name = std::to_string(i);
    Engine& engine = world_.engine(rank_);
    submissions_.push_back(
        engine.submit({"gpu" + name, signature, on_gpu.data(), on_gpu.stream()}, set_));
    signature.device = DeviceKind::cpu;
    submissions_.push_back(engine.submit({"cpu" + name, signature, host_.back()->data()}, set_));
  }

  void submit_exchange(std::size_t i) {
    const Exchange& exchange = program_.exchanges[i];
    const DeviceTensor& input =
        tensor(exchange.type, exchange.values[static_cast<std::size_t>(rank_)]);
    const std::string name = std::to_string(i);
    results_.emplace_back(
        submit_on_gpu(world_, rank_, exchange, "gpu exchange" + name, input, set_),
        submit_on_host(world_, rank_, exchange, "cpu exchange" + name, *host_.back(), set_));
  }

  void compare(Pending& gpu, Pending& host) {
    for (Pending* pending : {&gpu, &host}) {
      world_.engine(rank_).wait(*pending->submission);
      pending->result->collect();
    }
    EXPECT_EQ(gpu.result->rows(), host.result->rows());
    EXPECT_EQ(bytes_of(world_, rank_, *gpu.result), bytes_of(world_, rank_, *host.result))
        << "rank " << rank_ << ", set " << set_;
  }

  GpuWorld& world_;
  int rank_;
  ProcessSet set_;
  const Program& program_;
  std::vector<std::unique_ptr<DeviceTensor>> tensors_;
  std::vector<std::unique_ptr<Bytes>> host_;
  std::vector<std::shared_ptr<Submission>> submissions_;
  std::vector<std::pair<Pending, Pending>> results_;  ///< on the GPU, in host memory
};

class GpuSets : public testing::TestWithParam<std::vector<int>> {
 protected:
  static test::GpuWorldOptions options(std::chrono::microseconds longest_delay = {}) {
    test::GpuWorldOptions result{.node_sizes = GetParam()};
    result.settings.chunk_size = 4096;
    result.settings.device_timeout = std::chrono::seconds(30);
    result.gpu.seed = test::seed();
    result.gpu.longest_delay = longest_delay;
    return result;
  }
  static int nodes_of(const std::vector<int>& members) {
    int nodes = 0;
    int first = 0;
    for (const int size : GetParam()) {
      nodes += std::ranges::any_of(members, [&](int r) { return r >= first && r < first + size; });
      first += size;
    }
    return nodes;
  }
  /// Of any two ranks or more.
  static std::vector<int> random_members(int ranks, Random& random) {
    std::vector<int> members(static_cast<std::size_t>(ranks));
    std::iota(members.begin(), members.end(), 0);
    std::ranges::shuffle(members, random);
    members.resize(2 + random() % static_cast<std::size_t>(ranks - 1));
    std::ranges::sort(members);
    return members;
  }
};

// Each rank has a thread for each of its sets, which overlap: were the GPUs given their collectives
// in differing orders, their streams would deadlock. The first set is the world, which is at work
// when the others are added.
TEST_P(GpuSets, ThatOverlapGiveTheCpuPathsBytesAtOnce) {
  auto random = test::generator();
  GpuWorld world(options(std::chrono::microseconds(200)));
  std::vector<Program> programs;
  for (int i = 0; i < 5; ++i) {
    auto members = random_members(world.size(), random);
    if (i == 0) {
      members.resize(static_cast<std::size_t>(world.size()));
      std::iota(members.begin(), members.end(), 0);
    }
    const int nodes = nodes_of(members);
    programs.push_back(random_program(std::move(members), world.size(), nodes, random));
  }
  const std::uint64_t seed = random();
  world.on_all_ranks([&](int rank) {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < programs.size(); ++i) {
      const Program& program = programs[i];
      const ProcessSet set = i == 0 ? kWorld : world.engine(rank).add_set(program.members);
      if (std::ranges::find(program.members, rank) == program.members.end()) continue;
      threads.emplace_back([&world, &program, rank, set, own = seed + i * 100] {
        Random order(own + static_cast<std::uint64_t>(rank));
        for (int round = 0; round < 3; ++round) Player(world, rank, set, program).play(order);
      });
    }
  });
  EXPECT_THAT(world.complaints(), testing::IsEmpty());
}

TEST_P(GpuSets, HaveACommunicatorFromTheFirstUseToTheirRemoval) {
  GpuWorld world(options());
  std::vector<int> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  const auto communicators = [&](int rank) { return world.gpu(rank).live().communicators; };
  world.on_all_ranks([&](int rank) {
    Engine& engine = world.engine(rank);
    const ProcessSet set = engine.add_set(all);
    EXPECT_EQ(communicators(rank), 1);
    DeviceTensor tensor(world.gpu(rank), DataType::int32, Bytes(400, std::byte{1}));
    for (int i = 0; i < 3; ++i) {
      const auto submission =
          engine.submit({"x", tensor.signature(OperationKind::allreduce, ReduceOp::sum),
                         tensor.data(), tensor.stream()},
                        set);
      engine.wait(*submission);
      EXPECT_EQ(communicators(rank), 2);
    }
    tensor.read();
    engine.remove_set(set);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (communicators(rank) > 1 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_EQ(communicators(rank), 1);
  });
  EXPECT_THAT(world.complaints(), testing::IsEmpty());
  world.end();
  EXPECT_THAT(world.ranks_with_leftovers(), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuSets,
                         testing::Values(std::vector{2}, std::vector{3}, std::vector{4},
                                         std::vector{1, 1}, std::vector{2, 2}, std::vector{1, 3}));

// The rank that fails has no turn any more: those that wait for it get its error.
TEST(GpuSetFaults, ARankThatFailsToConnectFreesTheOthers) {
  for (const char* call : {"initialisation", "comm_init_rank_config", "all_reduce"}) {
    test::GpuWorldOptions options{.node_sizes = {3}};
    options.settings.device_timeout = std::chrono::milliseconds(400);
    options.settings.log_level = LogLevel::off;
    options.gpu.seed = test::seed();
    GpuWorld world(options);
    world.on_all_ranks([&](int rank) {
      Engine& engine = world.engine(rank);
      const ProcessSet set = engine.add_set({0, 1, 2});
      if (rank == 2) world.gpu(rank).nccl_fail(call, 1, ncclSystemError);
      DeviceTensor tensor(world.gpu(rank), DataType::int32, Bytes(400, std::byte{1}));
      const Signature signature = tensor.signature(OperationKind::allreduce, ReduceOp::sum);
      const auto begin = std::chrono::steady_clock::now();
      test::expect_error(ErrorCode::transport, [&] {
        // The first one may end before its kernel, which never does.
        for (int i = 0; i < 1000; ++i) {
          const auto submission =
              engine.submit({"x", signature, tensor.data(), tensor.stream()}, set);
          engine.wait(*submission);
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
      });
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << call;
    });
  }
}

}  // namespace
}  // namespace hora
