// Tensors on GPUs through all parts: engine, pipeline, NcclGroup, on fake GPUs: when the host
// waits, and how process sets share the devices. What collectives give, and what is left, is in
// tests/conformance.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string_view>
#include <thread>

#include "ops/cross/cross_group.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_gpu/gpu_world.h"
#include "tests/support/reference/reference.h"
#include "tests/support/seed.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/timeline.h"

namespace hora::internal {
namespace {

using test::DeviceTensor;
using test::GpuWorld;
using test::GpuWorldOptions;
using test::whole_numbers;

using Bytes = std::vector<std::byte>;
using Tensors = std::vector<std::unique_ptr<DeviceTensor>>;

/// One on each rank.
Tensors tensors_of(GpuWorld& world, const Bytes& bytes) {
  Tensors tensors;
  for (int rank = 0; rank < world.size(); ++rank) {
    tensors.push_back(std::make_unique<DeviceTensor>(world.gpu(rank), DataType::float32, bytes));
  }
  return tensors;
}

/// Nodes, and how data travels between them.
struct Layout {
  std::vector<int> nodes;
  bool device_staging = false;
  CrossAlgorithm algorithm = CrossAlgorithm::direct;
  std::size_t small_message = 0;
  bool by_nccl = false;
};

std::string layout_name(const testing::TestParamInfo<Layout>& info) {
  const Layout& layout = info.param;
  std::string name = "nodes";
  for (const int size : layout.nodes) name += "_" + std::to_string(size);
  if (layout.by_nccl) return name + "_nccl";
  if (!layout.device_staging) return name;
  const std::string_view algorithm = layout.small_message > 0
                                         ? kDisseminationAllreduce.name
                                         : allreduce_algorithm(layout.algorithm).name;
  return name + "_gpu_" + std::string(algorithm);
}

class GpuEngine : public testing::TestWithParam<Layout> {
 protected:
  GpuWorldOptions options() const {
    GpuWorldOptions result{.node_sizes = GetParam().nodes,
                           .device_staging = GetParam().device_staging,
                           .by_nccl = GetParam().by_nccl};
    result.settings.chunk_size = 4096;
    result.settings.cross_algorithm = GetParam().algorithm;
    result.settings.small_message = GetParam().small_message;
    result.settings.device_timeout = std::chrono::seconds(60);
    result.gpu.seed = test::seed();
    return result;
  }
  static void expect_no_complaints(GpuWorld& world) {
    EXPECT_THAT(world.complaints(), testing::IsEmpty());
    EXPECT_EQ(world.messages() > 0, GetParam().device_staging);
    EXPECT_EQ(world.misplaced_messages(), 0);
  }
};

// Calls that cost the host a wait for the GPU, or the GPU a stop.
constexpr const char* kSynchronising[] = {
    "stream_synchronize", "event_synchronize", "malloc",        "free",
    "host_alloc",         "free_host",         "stream_create", "event_create",
    "device_synchronize"};

TEST_P(GpuEngine, TheSteadyStateNeverSynchronises) {
  GpuWorld world(options());
  auto random = test::generator();
  const Tensors tensors = tensors_of(world, whole_numbers(DataType::float32, 20000, random));
  const auto run = [&](int rounds) {
    world.on_all_ranks([&](int rank) {
      DeviceTensor& tensor = *tensors[static_cast<std::size_t>(rank)];
      for (int i = 0; i < rounds; ++i) {
        world.engine(rank).submit_and_wait(
            {"x", tensor.signature(OperationKind::allreduce, ReduceOp::sum), tensor.data(),
             tensor.stream()});
        // The application reads its result before the next round, as an optimizer does.
        tensor.read();
      }
    });
  };
  run(20);
  std::map<std::pair<int, std::string>, int> before;
  for (int rank = 0; rank < world.size(); ++rank) {
    for (const char* call : kSynchronising) before[{rank, call}] = world.gpu(rank).count(call);
    before[{rank, "memcpy_async"}] = world.gpu(rank).count("memcpy_async");
  }
  constexpr int kRounds = 10;
  run(kRounds);
  for (int rank = 0; rank < world.size(); ++rank) {
    for (const char* call : kSynchronising) {
      const int by_the_test = std::string(call) == "stream_synchronize" ? kRounds : 0;
      EXPECT_EQ(world.gpu(rank).count(call) - before.at({rank, call}), by_the_test)
          << call << " on rank " << rank;
    }
    if (GetParam().device_staging) {
      EXPECT_EQ(world.gpu(rank).count("memcpy_async") - before.at({rank, "memcpy_async"}), kRounds)
          << "copies beside the test's own";
    }
  }
  expect_no_complaints(world);
}

constexpr auto kDirect = CrossAlgorithm::direct;
constexpr std::size_t kAllSmall = std::size_t{1} << 20;
Layout by_nccl(std::vector<int> nodes) {
  return {.nodes = std::move(nodes), .by_nccl = true};
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuEngine,
                         testing::Values(Layout{{1}}, Layout{{2}}, Layout{{4}}, Layout{{1, 1}},
                                         Layout{{2, 1}}, Layout{{2, 2}}, Layout{{1, 1}, true},
                                         Layout{{2, 2}, true},
                                         Layout{{2, 1, 1}, true, CrossAlgorithm::ring},
                                         Layout{{1, 2, 1}, true, kDirect, kAllSmall},
                                         by_nccl({1, 1}), by_nccl({2, 2}), by_nccl({1, 3})),
                         layout_name);

constexpr OperationKind kExchanges[] = {OperationKind::allgather, OperationKind::alltoall,
                                        OperationKind::reduce_scatter};

/// One that is waited for.
test::PendingExchange exchange_ten_rows(GpuWorld& world, int rank, OperationKind kind,
                                        const DeviceTensor& input) {
  const bool each = kind == OperationKind::alltoall;
  const std::vector<std::int64_t> rows(each ? 2 : 1, each ? 5 : 10);
  auto pending = submit_exchange(world, rank, kind, rows, input);
  world.engine(rank).wait(*pending.operation);
  pending.result->collect();
  return pending;
}

TEST(GpuEngineOrder, WaitDoesNotWaitForTheGpu) {
  GpuWorld world({.node_sizes = {2}});
  const Bytes ones(400, std::byte{1});
  const Tensors tensors = tensors_of(world, ones);
  for (int rank = 0; rank < 2; ++rank) {
    DeviceTensor& tensor = *tensors[static_cast<std::size_t>(rank)];
    tensor.read();
    world.gpu(rank).hold();
    tensor.fill(ones);  // comes late
  }
  std::vector<std::vector<test::PendingExchange>> results(2);
  world.on_all_ranks([&](int rank) {  // returns, though no stream moves
    DeviceTensor& tensor = *tensors[static_cast<std::size_t>(rank)];
    Signature signature = tensor.signature(OperationKind::allreduce, ReduceOp::sum);
    signature.type = DataType::int32;
    world.engine(rank).submit_and_wait({"x", signature, tensor.data(), tensor.stream()});
    for (const OperationKind kind : kExchanges) {
      results[static_cast<std::size_t>(rank)].push_back(
          exchange_ten_rows(world, rank, kind, tensor));
    }
  });
  for (int rank = 0; rank < 2; ++rank) world.gpu(rank).resume();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(tensors[static_cast<std::size_t>(rank)]->read(), testing::Each(std::byte{2}));
    const test::PendingExchange& gathered = results[static_cast<std::size_t>(rank)].front();
    Bytes bytes(800);
    world.heap(rank).to_host(bytes.data(), gathered.result->data(), 800,
                             gathered.result->view().stream);
    EXPECT_THAT(bytes, testing::Each(std::byte{2}));
  }
}

TEST(GpuEngineOrder, ExchangesNeverSynchroniseInTheSteadyState) {
  GpuWorld world({.node_sizes = {2}});
  const auto calls = [&](int rank) {
    int sum = 0;
    for (const char* call : kSynchronising) sum += world.gpu(rank).count(call);
    return sum;
  };
  world.on_all_ranks([&](int rank) {
    const DeviceTensor input(world.gpu(rank), DataType::float32, Bytes(400));
    int before = 0;
    for (int round = 0; round < 20; ++round) {
      if (round == 10) before = calls(rank);
      for (const OperationKind kind : kExchanges) exchange_ten_rows(world, rank, kind, input);
    }
    EXPECT_EQ(calls(rank), before);
  });
}

class GpuSets : public testing::TestWithParam<Layout> {
 protected:
  GpuSets() {
    GpuWorldOptions options{.node_sizes = GetParam().nodes, .by_nccl = GetParam().by_nccl};
    options.settings.chunk_size = 4096;
    options.settings.device_timeout = std::chrono::seconds(30);
    options.gpu.seed = test::seed();
    options.gpu.longest_delay = std::chrono::microseconds(100);
    world_ = std::make_unique<GpuWorld>(options);
  }
  ~GpuSets() override {
    EXPECT_THAT(world_->complaints(), testing::IsEmpty());
    world_->end();
    EXPECT_THAT(world_->ranks_with_leftovers(), testing::IsEmpty());
  }
  /// `rounds` sums of ones in a set of `members` ranks.
  void sum_ones(int rank, ProcessSet set, std::size_t members, int rounds) {
    for (int round = 0; round < rounds; ++round) {
      DeviceTensor tensor(world_->gpu(rank), DataType::uint8, Bytes(8000, std::byte{1}));
      const auto operation = world_->engine(rank).submit(
          {"x", tensor.signature(OperationKind::allreduce, ReduceOp::sum), tensor.data(),
           tensor.stream()},
          set);
      world_->engine(rank).wait(*operation);
      ASSERT_THAT(tensor.read(), testing::Each(static_cast<std::byte>(members)));
    }
  }

  std::unique_ptr<GpuWorld> world_;
};

TEST_P(GpuSets, HaveACommunicatorFromTheFirstUseToTheirRemoval) {
  std::vector<int> all(static_cast<std::size_t>(world_->size()));
  std::iota(all.begin(), all.end(), 0);
  const auto communicators = [&](int rank) { return world_->gpu(rank).live().communicators; };
  world_->on_all_ranks([&](int rank) {
    Engine& engine = world_->engine(rank);
    const ProcessSet set = engine.sets().add(all);
    EXPECT_EQ(communicators(rank), 1);
    sum_ones(rank, set, all.size(), 3);
    EXPECT_EQ(communicators(rank), 2);
    engine.sets().remove(set);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (communicators(rank) > 1 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    EXPECT_EQ(communicators(rank), 1);
  });
}

// The ranks of each node, and one rank of each: their kernels wait for one another's ranks on the
// same streams. Were two nodes' orders to cross, they would wait for ever.
TEST_P(GpuSets, InNodesAndOverNodesTakeTurnsWithTheWorld) {
  std::vector<std::vector<int>> sets;
  std::vector<int> over_nodes;
  for (int first = 0; const int size : GetParam().nodes) {
    auto& of_node = sets.emplace_back(static_cast<std::size_t>(size));
    std::iota(of_node.begin(), of_node.end(), first);
    over_nodes.push_back(first);
    first += size;
  }
  sets.push_back(over_nodes);
  constexpr int kRounds = 40;
  world_->on_all_ranks([&](int rank) {
    Engine& engine = world_->engine(rank);
    std::vector<std::jthread> threads;
    for (const auto& members : sets) {
      const ProcessSet set = engine.sets().add(members);
      if (std::ranges::find(members, rank) == members.end()) continue;
      threads.emplace_back([&, set, size = members.size()] { sum_ones(rank, set, size, kRounds); });
    }
    sum_ones(rank, kWorld, static_cast<std::size_t>(world_->size()), kRounds);
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuSets,
                         testing::Values(Layout{{2}}, Layout{{4}}, Layout{{1, 1}}, Layout{{1, 3}},
                                         by_nccl({1, 1}), by_nccl({2, 1}), by_nccl({2, 2}),
                                         by_nccl({1, 2, 1})),
                         layout_name);

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::size_t kBytes = 4096;

Settings quiet(std::chrono::milliseconds timeout) {
  Settings settings;
  settings.device_timeout = timeout;
  settings.log_level = LogLevel::off;
  return settings;
}

class GpuLifetime : public testing::Test {
 protected:
  explicit GpuLifetime(std::chrono::milliseconds timeout = 60s)
      : world_({.node_sizes = {2}, .settings = quiet(timeout), .gpu = {}}) {
    for (const auto& tensor : tensors_) tensor->read();
  }
  DeviceTensor& tensor(int rank) { return *tensors_[static_cast<std::size_t>(rank)]; }
  std::shared_ptr<Operation> submit(int rank, const char* name = "x") {
    return world_.engine(rank).submit(
        {name, tensor(rank).signature(OperationKind::allreduce, ReduceOp::sum), tensor(rank).data(),
         tensor(rank).stream()});
  }
  void expect_freed() {
    tensors_.clear();
    world_.end();
    EXPECT_THAT(world_.complaints(), IsEmpty());
    EXPECT_THAT(world_.ranks_with_leftovers(), IsEmpty());
  }

  GpuWorld world_;
  Tensors tensors_ = tensors_of(world_, Bytes(kBytes));
};

TEST_F(GpuLifetime, ABufferIsFreedWhenNoStreamUsesItAnyMore) {
  const CudaFunctions& cuda = world_.gpu(0).cuda();
  for (int round = 0; round < 3; ++round) {
    std::byte* const buffer = world_.engine(0).allocate_on_device(kBytes);
    world_.gpu(0).delay("memset_async", 30ms);
    ASSERT_EQ(cuda.memset_async(buffer, 1, kBytes, static_cast<cudaStream_t>(tensor(0).stream())),
              cudaSuccess);
    world_.engine(0).release_on_device(buffer);
  }
  EXPECT_EQ(world_.gpu(0).nccl_count("mem_free"), 3);
  EXPECT_EQ(world_.gpu(0).nccl_count("comm_deregister"), 3);
  expect_freed();
}

TEST_F(GpuLifetime, NothingIsDeregisteredWhileACallIsTakenIn) {
  std::byte* const buffer = world_.engine(0).allocate_on_device(kBytes);
  world_.gpu(0).hold_launches();
  auto first = submit(0);
  auto second = submit(1);
  while (world_.gpu(0).nccl_count("all_reduce") == 0) std::this_thread::sleep_for(1ms);
  std::jthread releasing([&] { world_.engine(0).release_on_device(buffer); });
  std::this_thread::sleep_for(30ms);
  EXPECT_EQ(world_.gpu(0).nccl_count("comm_deregister"), 0);
  world_.gpu(0).resume_launches();
  world_.engine(0).wait(*first);
  world_.engine(1).wait(*second);
  first = second = nullptr;
  releasing.join();
  EXPECT_EQ(world_.gpu(0).nccl_count("comm_deregister"), 1);
  expect_freed();
}

TEST_F(GpuLifetime, ProgressGoesOnWhileABufferWaits) {
  std::byte* const buffer = world_.engine(0).allocate_on_device(kBytes);
  world_.gpu(1).hold();  // rank 0's collective waits for rank 1's GPU
  auto first = submit(0);
  auto second = submit(1);
  world_.engine(0).wait(*first);
  std::jthread releasing([&] { world_.engine(0).release_on_device(buffer); });
  std::this_thread::sleep_for(20ms);
  EXPECT_EQ(world_.gpu(0).nccl_count("mem_free"), 0);
  auto third = submit(0, "y");  // and takes part in others meanwhile
  auto fourth = submit(1, "y");
  world_.engine(0).wait(*third);
  world_.gpu(1).resume();
  world_.engine(1).wait(*second);
  world_.engine(1).wait(*fourth);
  first = second = third = fourth = nullptr;
  releasing.join();
  EXPECT_EQ(world_.gpu(0).nccl_count("mem_free"), 1);
  expect_freed();
}

TEST_F(GpuLifetime, AfterAFailureABufferStaysAsPeersMayWriteToIt) {
  std::byte* const buffer = world_.engine(0).allocate_on_device(kBytes);
  world_.gpu(0).async_error(ncclRemoteError);
  const auto first = submit(0);
  const auto second = submit(1);
  while (!world_.engine(0).aborted()) std::this_thread::sleep_for(1ms);
  world_.engine(0).release_on_device(buffer);
  tensors_.clear();
  world_.end();
  EXPECT_EQ(world_.gpu(0).nccl_count("mem_free"), 0);
  EXPECT_THAT(world_.complaints(), IsEmpty());
}

TEST_F(GpuLifetime, ACaptureOfTheProgramsGoesOnBesideCollectives) {
  const DeviceGuard device(world_.gpu(0).cuda(), 0);
  const CudaStream captured(world_.gpu(0).cuda(), 0);
  ASSERT_EQ(world_.gpu(0).begin_capture(captured.get()), cudaSuccess);
  for (int round = 0; round < 5; ++round) {
    world_.on_all_ranks([&](int rank) { world_.engine(rank).wait(*submit(rank)); });
  }
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(world_.gpu(0).end_capture(captured.get()), cudaSuccess);
}

TEST_F(GpuLifetime, ACollectiveIsNoPartOfACapture) {
  auto* const stream = static_cast<cudaStream_t>(tensor(0).stream());
  ASSERT_EQ(world_.gpu(0).begin_capture(stream), cudaSuccess);
  test::expect_error(ErrorCode::invalid_use, HasSubstr("end the capture"), [&] { submit(0); });
  EXPECT_EQ(world_.gpu(0).end_capture(stream), cudaSuccess);
  world_.on_all_ranks([&](int rank) { world_.engine(rank).wait(*submit(rank)); });
  expect_freed();
}

class GpuAbort : public GpuLifetime {
 protected:
  GpuAbort() : GpuLifetime(300ms) {}
};

TEST_F(GpuAbort, SynchronizeThrowsAndABufferDoesNotWaitForEverWhereAPeerIsGone) {
  std::byte* const buffer = world_.engine(0).allocate_on_device(kBytes);
  world_.gpu(1).hold();
  world_.on_all_ranks([&](int rank) {
    const auto submission = submit(rank);
    if (rank == 1) return;
    world_.engine(0).wait(*submission);
    const auto begin = std::chrono::steady_clock::now();
    world_.engine(0).release_on_device(buffer);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 10s);
    test::expect_error(ErrorCode::transport, HasSubstr("no progress"),
                       [&] { world_.engine(0).synchronize(*submission); });
  });
  EXPECT_EQ(world_.gpu(0).nccl_count("mem_free"), 0);
  world_.gpu(1).resume();
}

using test::Timeline;
using testing::SizeIs;

constexpr const char* kCollectives = "GPU: collectives";
constexpr std::size_t kChunk = 4096;
constexpr std::size_t kElements = 5000;
constexpr std::size_t kChunks = (kElements * sizeof(float) + kChunk - 1) / kChunk;
constexpr std::size_t kRounds = 6;

class GpuTimeline : public testing::TestWithParam<std::vector<int>> {
 protected:
  GpuTimeline() {
    GpuWorldOptions options{.node_sizes = GetParam(), .settings = {}, .gpu = {}, .trace = {}};
    options.settings.chunk_size = kChunk;
    options.trace = [this](int rank) { return Tracer(&trace(rank)); };
    const int size = std::accumulate(GetParam().begin(), GetParam().end(), 0);
    for (int rank = 0; rank < size; ++rank) traces_.push_back(std::make_unique<Trace>());
    world_ = std::make_unique<GpuWorld>(options);
    tensors_ = tensors_of(*world_, Bytes(kElements * sizeof(float)));
  }
  ~GpuTimeline() override {
    EXPECT_THAT(world_->complaints(), IsEmpty());
    tensors_.clear();
    world_->end();
    for (int rank = 0; rank < size(); ++rank) {
      EXPECT_EQ(world_->gpu(rank).live(), test::LiveHandles{}) << "rank " << rank;
    }
  }

  int size() const { return static_cast<int>(traces_.size()); }
  Trace& trace(int rank) { return *traces_[static_cast<std::size_t>(rank)]; }
  std::string file(int rank) const { return folder_.file(std::to_string(rank) + ".json"); }
  void start() {
    for (int rank = 0; rank < size(); ++rank) trace(rank).start(file(rank), {rank, size(), 0, "h"});
  }
  void stop() {
    for (int rank = 0; rank < size(); ++rank) trace(rank).stop();
  }
  void train() {
    world_->on_all_ranks([&](int rank) {
      DeviceTensor& tensor = *tensors_[static_cast<std::size_t>(rank)];
      for (std::size_t round = 0; round < kRounds; ++round) {
        world_->engine(rank).submit_and_wait(
            {"x", tensor.signature(OperationKind::allreduce, ReduceOp::average), tensor.data(),
             tensor.stream()});
        tensor.read();
      }
    });
  }

  test::TemporaryFolder folder_;
  std::vector<std::unique_ptr<Trace>> traces_;
  std::unique_ptr<GpuWorld> world_;
  Tensors tensors_;
};

TEST_P(GpuTimeline, ShowsWhatTheStreamsDidForEachUnitAndNeverSynchronises) {
  train();
  std::vector<test::LiveHandles> before;
  std::map<std::pair<int, std::string>, int> calls;
  const auto kWaiting = {"event_synchronize", "malloc", "free", "host_alloc", "free_host"};
  for (int rank = 0; rank < size(); ++rank) {
    before.push_back(world_->gpu(rank).live());
    for (const char* call : kWaiting) calls[{rank, call}] = world_->gpu(rank).count(call);
    // And DeviceTensor::read()'s own.
    calls[{rank, "stream_synchronize"}] =
        world_->gpu(rank).count("stream_synchronize") + static_cast<int>(kRounds);
  }
  start();
  train();
  stop();
  for (const auto& [call, count] : calls) {
    EXPECT_EQ(world_->gpu(call.first).count(call.second.c_str()), count) << call.second;
  }
  const bool one_node = GetParam().size() == 1;
  const std::vector<std::string> phases =
      one_node ? std::vector<std::string>{"allreduce"}
               : std::vector<std::string>{"pack", "reduce_scatter", "all_gather", "unpack"};
  for (int rank = 0; rank < size(); ++rank) {
    EXPECT_EQ(world_->gpu(rank).live(), before[static_cast<std::size_t>(rank)]) << "rank " << rank;
    EXPECT_GT(world_->gpu(rank).timing_events(), 0);
    const Timeline timeline(file(rank));
    EXPECT_EQ(timeline.dropped(), 0u);
    const std::size_t of_each = kRounds * (one_node ? 1 : kChunks);
    for (const std::string& phase : phases) {
      const auto spans = timeline.spans(kCollectives, phase);
      EXPECT_THAT(spans, SizeIs(of_each)) << phase;
      for (const auto& span : spans) EXPECT_EQ(span.args.at("tensor"), "x");
    }
    EXPECT_THAT(timeline.spans(kCollectives), SizeIs(of_each * phases.size()));
    for (const char* row : {kCollectives, "GPU: download", "GPU: upload"}) {
      EXPECT_FALSE(test::overlap(timeline.spans(row))) << row;
    }
    EXPECT_THAT(timeline.spans("GPU: download", "download"), SizeIs(one_node ? 0 : of_each));
    EXPECT_THAT(timeline.spans("GPU: upload", "upload"), SizeIs(one_node ? 0 : of_each));
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuTimeline,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{1, 1},
                                         std::vector{2, 2}, std::vector{1, 2}));

}  // namespace
}  // namespace hora::internal
