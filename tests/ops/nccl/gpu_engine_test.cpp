// Tensors on GPUs through all parts: engine, pipeline, NcclGroup, on fake GPUs: when the host
// waits, and how process sets share the devices. What collectives give, and what is left, is in
// tests/conformance.
#include <hora/error.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string_view>
#include <thread>

#include "ops/cross/cross_group.h"
#include "tests/ops/nccl/gpu_ranks.h"
#include "tests/support/expect_error.h"
#include "tests/support/reference/reference.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/timeline.h"

namespace hora::internal {
namespace {

using namespace std::chrono_literals;
using test::Bytes;
using test::DeviceTensor;
using test::GpuWorld;
using test::GpuWorldOptions;
using test::Tensors;
using test::tensors_of;
using test::Timeline;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

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

class GpuEngine : public testing::TestWithParam<Layout> {};

/// How often a rank has made the calls that cost the host a wait for the GPU, or the GPU a stop,
/// and last, where asked for, that make streams and events. `own`: times that the test has waited.
std::vector<int> stops(GpuWorld& world, int rank, int own = 0, bool of_making = true) {
  std::vector<const char*> calls = {"event_synchronize", "malloc",    "free",
                                    "host_alloc",        "free_host", "device_synchronize"};
  if (of_making) calls.insert(calls.end(), {"stream_create", "event_create"});
  std::vector<int> counts = {world.gpu(rank).count("stream_synchronize") - own};
  for (const char* call : calls) counts.push_back(world.gpu(rank).count(call));
  return counts;
}

/// The application reads its result before the next round, as an optimizer does.
void reduce_and_read(GpuWorld& world, int rank, DeviceTensor& tensor, ReduceOp op, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    world.engine(rank).submit_and_wait(
        {"x", tensor.signature(OperationKind::allreduce, op), tensor.data(), tensor.stream()});
    tensor.read();
  }
}

TEST_P(GpuEngine, TheSteadyStateNeverSynchronises) {
  GpuWorldOptions options = test::small_chunks(GetParam().nodes, 60s);
  options.device_staging = GetParam().device_staging;
  options.by_nccl = GetParam().by_nccl;
  options.settings.cross_algorithm = GetParam().algorithm;
  options.settings.small_message = GetParam().small_message;
  GpuWorld world(options);
  auto random = test::generator();
  const Tensors tensors = tensors_of(world, test::whole_numbers(DataType::float32, 20000, random));
  const auto run = [&](int rank, int rounds) {
    reduce_and_read(world, rank, *tensors[static_cast<std::size_t>(rank)], ReduceOp::sum, rounds);
  };
  world.on_all_ranks([&](int rank) { run(rank, 20); });
  world.on_all_ranks([&](int rank) {
    const auto before = stops(world, rank);
    const int copies = world.gpu(rank).count("memcpy_async");
    run(rank, 10);
    EXPECT_EQ(stops(world, rank, 10), before) << "rank " << rank;
    if (!GetParam().device_staging) return;
    EXPECT_EQ(world.gpu(rank).count("memcpy_async") - copies, 10) << "beside the test's own";
  });
  EXPECT_THAT(world.complaints(), IsEmpty());
  EXPECT_EQ(world.messages() > 0, GetParam().device_staging);
  EXPECT_EQ(world.misplaced_messages(), 0);
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
    EXPECT_THAT(tensors[static_cast<std::size_t>(rank)]->read(), Each(std::byte{2}));
    const test::PendingExchange& gathered = results[static_cast<std::size_t>(rank)].front();
    Bytes bytes(800);
    world.heap(rank).to_host(bytes.data(), gathered.result->data(), 800,
                             gathered.result->view().stream);
    EXPECT_THAT(bytes, Each(std::byte{2}));
  }
}

TEST(GpuEngineOrder, ExchangesNeverSynchroniseInTheSteadyState) {
  GpuWorld world({.node_sizes = {2}});
  world.on_all_ranks([&](int rank) {
    const DeviceTensor input(world.gpu(rank), DataType::float32, Bytes(400));
    std::vector<int> before;
    for (int round = 0; round < 20; ++round) {
      if (round == 10) before = stops(world, rank);
      for (const OperationKind kind : kExchanges) exchange_ten_rows(world, rank, kind, input);
    }
    EXPECT_EQ(stops(world, rank), before);
  });
}

class GpuSets : public testing::TestWithParam<Layout> {
 protected:
  GpuSets() {
    GpuWorldOptions options = test::small_chunks(GetParam().nodes, 30s);
    options.by_nccl = GetParam().by_nccl;
    options.gpu.longest_delay = std::chrono::microseconds(100);
    world_ = std::make_unique<GpuWorld>(options);
  }
  ~GpuSets() override { test::expect_clean_end(*world_); }
  /// `rounds` sums of ones in a set of `members` ranks.
  void sum_ones(int rank, ProcessSet set, std::size_t members, int rounds) {
    for (int round = 0; round < rounds; ++round) {
      DeviceTensor tensor(world_->gpu(rank), DataType::uint8, Bytes(8000, std::byte{1}));
      const auto operation = world_->engine(rank).submit(
          {"x", tensor.signature(OperationKind::allreduce, ReduceOp::sum), tensor.data(),
           tensor.stream()},
          set);
      world_->engine(rank).wait(*operation);
      ASSERT_THAT(tensor.read(), Each(static_cast<std::byte>(members)));
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
    const auto deadline = std::chrono::steady_clock::now() + 10s;
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

constexpr std::size_t kBytes = 4096;

class GpuLifetime : public testing::Test {
 protected:
  explicit GpuLifetime(std::chrono::milliseconds timeout = 60s)
      : world_(test::quiet({2}, timeout)) {
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
    test::expect_clean_end(world_);
  }

  GpuWorld world_;
  Tensors tensors_ = tensors_of(world_, Bytes(kBytes));
};

TEST_F(GpuLifetime, ABufferIsFreedWhenNoStreamUsesItAnyMore) {
  const CudaFunctions& cuda = world_.gpu(0).cuda();
  for (int round = 0; round < 3; ++round) {
    std::byte* const buffer = world_.engine(0).allocate_on_device(kBytes);
    world_.gpu(0).delay(30ms);
    ASSERT_EQ(cuda.memset_async(buffer, 1, kBytes, static_cast<cudaStream_t>(tensor(0).stream())),
              cudaSuccess);
    world_.gpu(0).delay(0ms);
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

constexpr const char* kCollectives = "GPU: collectives";
constexpr std::size_t kElements = 5000;
constexpr std::size_t kChunks = (kElements * sizeof(float) + 4095) / 4096;
constexpr int kRounds = 6;

class GpuTimeline : public testing::TestWithParam<std::vector<int>> {
 protected:
  GpuTimeline() {
    GpuWorldOptions options = test::small_chunks(GetParam(), 60s);
    options.trace = [this](int rank) { return Tracer(&trace(rank)); };
    const int size = std::accumulate(GetParam().begin(), GetParam().end(), 0);
    for (int rank = 0; rank < size; ++rank) traces_.push_back(std::make_unique<Trace>());
    world_ = std::make_unique<GpuWorld>(options);
    tensors_ = tensors_of(*world_, Bytes(kElements * sizeof(float)));
  }
  ~GpuTimeline() override {
    tensors_.clear();
    test::expect_clean_end(*world_);
  }

  int size() const { return static_cast<int>(traces_.size()); }
  Trace& trace(int rank) { return *traces_[static_cast<std::size_t>(rank)]; }
  std::string file(int rank) const { return folder_.file(std::to_string(rank) + ".json"); }
  void train() {
    world_->on_all_ranks([&](int rank) {
      DeviceTensor& tensor = *tensors_[static_cast<std::size_t>(rank)];
      reduce_and_read(*world_, rank, tensor, ReduceOp::average, kRounds);
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
  std::vector<std::vector<int>> stopped;
  for (int rank = 0; rank < size(); ++rank) {
    before.push_back(world_->gpu(rank).live());
    stopped.push_back(stops(*world_, rank, 0, false));
    trace(rank).start(file(rank), {rank, size(), 0, "h"});
  }
  train();
  for (int rank = 0; rank < size(); ++rank) trace(rank).stop();
  const bool one_node = GetParam().size() == 1;
  const std::vector<std::string> phases =
      one_node ? std::vector<std::string>{"allreduce"}
               : std::vector<std::string>{"pack", "reduce_scatter", "all_gather", "unpack"};
  for (int rank = 0; rank < size(); ++rank) {
    const auto own = static_cast<std::size_t>(rank);
    EXPECT_EQ(world_->gpu(rank).live(), before[own]) << "rank " << rank;
    EXPECT_EQ(stops(*world_, rank, kRounds, false), stopped[own]) << "rank " << rank;
    const Timeline timeline(file(rank));
    EXPECT_EQ(timeline.dropped(), 0u);
    const std::size_t of_each = (one_node ? 1 : kChunks) * kRounds;
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
