// What a timeline shows of tensors on GPUs: engine, pipeline, NcclGroup, on fake GPUs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>

#include "tests/ops/nccl/gpu_world.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/timeline.h"

namespace hora::internal {
namespace {

using test::DeviceTensor;
using test::GpuWorld;
using test::GpuWorldOptions;
using test::Timeline;
using testing::IsEmpty;
using testing::SizeIs;

constexpr const char* kCollectives = "GPU: collectives";
constexpr std::size_t kChunk = 4096;
constexpr std::size_t kElements = 5000;
constexpr std::size_t kChunks = (kElements * sizeof(float) + kChunk - 1) / kChunk;
constexpr std::size_t kRounds = 6;

std::string layout_name(const testing::TestParamInfo<std::vector<int>>& info) {
  std::string name = "nodes";
  for (const int size : info.param) name += "_" + std::to_string(size);
  return name;
}

class GpuTimeline : public testing::TestWithParam<std::vector<int>> {
 protected:
  GpuTimeline() {
    GpuWorldOptions options{.node_sizes = GetParam(), .settings = {}, .gpu = {}, .trace = {}};
    options.settings.chunk_size = kChunk;
    options.trace = [this](int rank) { return Tracer(&trace(rank)); };
    const int size = std::accumulate(GetParam().begin(), GetParam().end(), 0);
    for (int rank = 0; rank < size; ++rank) traces_.push_back(std::make_unique<Trace>());
    world_ = std::make_unique<GpuWorld>(options);
    const std::vector<float> ones(kElements, 1.0F);
    std::vector<std::byte> bytes(ones.size() * sizeof(float));
    std::memcpy(bytes.data(), ones.data(), bytes.size());
    for (int rank = 0; rank < size; ++rank) {
      tensors_.push_back(
          std::make_unique<DeviceTensor>(world_->gpu(rank), DataType::float32, bytes));
    }
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
            "x", tensor.signature(OperationKind::allreduce, ReduceOp::average), tensor.data(),
            tensor.stream());
        tensor.read();
      }
    });
  }

  test::TemporaryFolder folder_;
  std::vector<std::unique_ptr<Trace>> traces_;
  std::unique_ptr<GpuWorld> world_;
  std::vector<std::unique_ptr<DeviceTensor>> tensors_;
};

TEST_P(GpuTimeline, OffNoEventWithATimeStampIsEverMade) {
  train();
  for (int rank = 0; rank < size(); ++rank) {
    EXPECT_EQ(world_->gpu(rank).timing_events(), 0);
    EXPECT_EQ(world_->gpu(rank).count("event_elapsed_time"), 0);
  }
}

TEST_P(GpuTimeline, ShowsWhatTheStreamsDidForEachUnit) {
  start();
  train();
  stop();
  const bool one_node = GetParam().size() == 1;
  const std::vector<std::string> phases =
      one_node ? std::vector<std::string>{"allreduce"}
               : std::vector<std::string>{"pack", "reduce_scatter", "all_gather", "unpack"};
  for (int rank = 0; rank < size(); ++rank) {
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

/// The device works for a unit after the unit's run has begun on the host.
TEST_P(GpuTimeline, LiesOnTheHostsClock) {
  start();
  train();
  const double stopped = static_cast<double>(trace_now().count()) / 1000.0;
  stop();
  for (int rank = 0; rank < size(); ++rank) {
    const Timeline timeline(file(rank));
    std::map<std::uint64_t, double> begin_of_unit;
    for (const auto& run : timeline.spans("x", "allreduce")) {
      begin_of_unit[run.args.at("unit")] = run.begin;
    }
    EXPECT_THAT(begin_of_unit, SizeIs(kRounds));
    // Early by what the fake device needed to come to the reference: a busy machine's threads.
    double latency = 0.0;
    for (const auto& span : timeline.spans(kCollectives)) {
      latency = std::max(latency, begin_of_unit.at(span.args.at("unit")) - span.begin);
      EXPECT_LT(span.end, stopped);
    }
    EXPECT_LT(latency, 1e6);
  }
}

TEST_P(GpuTimeline, NeverSynchronisesAndGivesAllBack) {
  train();
  std::vector<test::LiveHandles> before;
  std::map<std::pair<int, std::string>, int> calls;
  const auto kWaiting = {"event_synchronize", "malloc", "free", "host_alloc", "free_host"};
  for (int rank = 0; rank < size(); ++rank) {
    before.push_back(world_->gpu(rank).live());
    for (const char* call : kWaiting) calls[{rank, call}] = world_->gpu(rank).count(call);
    calls[{rank, "stream_synchronize"}] = world_->gpu(rank).count("stream_synchronize");
  }
  start();
  train();
  stop();
  for (int rank = 0; rank < size(); ++rank) {
    test::FakeGpu& gpu = world_->gpu(rank);
    EXPECT_EQ(gpu.live(), before[static_cast<std::size_t>(rank)]) << "rank " << rank;
    EXPECT_GT(gpu.timing_events(), 0);
    for (const char* call : kWaiting) EXPECT_EQ(gpu.count(call), (calls[{rank, call}])) << call;
    // DeviceTensor::read()'s own.
    EXPECT_EQ(gpu.count("stream_synchronize") - (calls[{rank, "stream_synchronize"}]),
              static_cast<int>(kRounds));
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, GpuTimeline,
                         testing::Values(std::vector{1}, std::vector{2}, std::vector{1, 1},
                                         std::vector{2, 2}, std::vector{1, 2}),
                         layout_name);

}  // namespace
}  // namespace hora::internal
