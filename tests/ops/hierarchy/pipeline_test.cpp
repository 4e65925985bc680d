// The pipeline over groups whose work completes after random numbers of polls, in any order, and
// that check and note what it asks of them. Exchanges among its chunks: exchange_run_test.cpp.
#include "ops/hierarchy/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/error.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "ops/hierarchy/memory_group.h"
#include "tests/core/control_block/shared_control_block.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"
#include "tests/support/threads/heap_memory.h"

namespace hora::internal {
namespace {

using test::HeapMemory;
using test::HeapNode;
using test::SharedControlBlock;
using Random = std::mt19937_64;

/// Done after some polls; calls `done` then.
class Slow final : public PendingWork {
 public:
  Slow(std::uint64_t polls, std::function<void()> done) : polls_(polls), done_(std::move(done)) {}
  bool poll() override {
    EXPECT_FALSE(complete_) << "polled again after its end";
    if (polls_-- > 0) return false;
    complete_ = true;
    done_();
    return true;
  }
  MemoryUse cancel() override { return complete_ ? MemoryUse::none : MemoryUse::writes; }

 private:
  std::uint64_t polls_;
  std::function<void()> done_;
  bool complete_ = false;
};

/// The pipeline's requests, checked as they come.
struct Trace {
  explicit Trace(Random& generator, std::uint64_t most_polls)
      : random(generator), slowest(most_polls) {}

  Completion slow(std::function<void()> done) {
    const std::uint64_t polls = random() % (slowest + 1);
    if (polls == 0 && random() % 2 == 0) {
      done();
      return {};  // complete at once
    }
    return Completion(std::make_unique<Slow>(polls, std::move(done)));
  }

  Random& random;
  std::uint64_t slowest;
  std::vector<Range> scattered, gathered;  ///< slices, in the order of their start
  std::vector<std::uint64_t> sequences;    ///< of the cross group
  std::vector<std::size_t> crossed_bytes;
  std::set<const std::byte*> staging_in_use;
  std::size_t most_in_use = 0;
  std::size_t gathers_complete = 0;
  std::set<std::uint64_t> scatters_open;  ///< their order numbers
  std::set<const std::byte*> crossing;
};

struct FakeLocal final : LocalGroup {
  explicit FakeLocal(Trace& t) : trace(t) {}

  bool is_collective() const override { return false; }  // that order: gpu_engine_test
  std::byte* staging(const ChunkPart& part) override { return memory.staging(part); }
  Completion run(const BoundUnit&) override { return {}; }
  Completion reduce_scatter(const ChunkPart& part) override {
    if (!part.has_input) return {};
    const std::byte* staged = staging(part);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(staged) % 64, 0u);
    EXPECT_TRUE(trace.staging_in_use.insert(staged).second) << "the slot is in use";
    trace.most_in_use = std::max(trace.most_in_use, trace.staging_in_use.size());
    const std::uint64_t number = trace.scattered.size();
    trace.scattered.push_back(part.slice);
    trace.scatters_open.insert(number);
    return trace.slow([this, number] { trace.scatters_open.erase(number); });
  }
  Completion all_gather(const ChunkPart& part) override {
    const std::byte* staged = staging(part);
    EXPECT_FALSE(trace.crossing.contains(staged)) << "before the network is done with it";
    trace.staging_in_use.insert(staged);  // a broadcast's slot has no input here
    trace.gathered.push_back(part.slice);
    return trace.slow([this, staged] {
      trace.staging_in_use.erase(staged);
      ++trace.gathers_complete;
    });
  }

  MemoryGroup memory{0, 1};
  Trace& trace;
};

struct FakeCross final : CrossGroup {
  explicit FakeCross(Trace& t) : trace(t) {}

  Completion start(std::span<std::byte> staging, std::uint64_t sequence) {
    EXPECT_GT(staging.size(), 0u);
    trace.sequences.push_back(sequence);
    trace.crossed_bytes.push_back(staging.size());
    trace.crossing.insert(staging.data());
    std::fill(staging.begin(), staging.end(), std::byte{1});  // the whole slot is there
    return trace.slow([this, at = staging.data()] { trace.crossing.erase(at); });
  }
  Completion allreduce(const Reduction& reduction, std::span<std::byte> staging,
                       std::uint64_t sequence) override {
    EXPECT_EQ(reduction.type, DataType::float64);
    EXPECT_EQ(reduction.scale, 0.125);
    EXPECT_EQ(staging.size() % 8, 0u);
    EXPECT_TRUE(trace.staging_in_use.contains(staging.data()));
    return start(staging, sequence);
  }
  Completion adasum(DataType, std::span<std::byte> staging, std::vector<Range>,
                    std::uint64_t sequence) override {
    return start(staging, sequence);
  }
  Completion broadcast(std::span<std::byte> staging, int root, std::uint64_t sequence) override {
    EXPECT_EQ(root, 1);
    return start(staging, sequence);
  }
  Completion exchange(std::span<const std::span<const std::byte>>,
                      std::span<const std::span<std::byte>>, std::uint64_t) override {
    return {};  // exchange_run_test
  }

  Trace& trace;
};

BoundUnit unit_of(std::size_t bytes, std::size_t chunk_bytes,
                  OperationKind kind = OperationKind::allreduce) {
  BoundUnit bound;
  bound.unit.kind = kind;
  bound.unit.type = DataType::float64;
  bound.unit.bytes = bytes;
  bound.unit.chunk_bytes = chunk_bytes;
  bound.scale = 0.125;
  bound.root_node = 1;
  return bound;
}

constexpr std::size_t kMostAdvances = 100000;

struct OneRank {
  OneRank(const PipelineOptions& options, Random& random, std::uint64_t slowest)
      : control_block({.local_size = 1, .id_capacity = 8, .single_node = false}),
        trace(random, slowest),
        local(trace),
        cross(trace),
        pipeline(options, control_block[0], memory, local, options.nodes > 1 ? &cross : nullptr) {}

  /// Starts the units at random times, and goes on until they are complete; `look` after each step.
  template <class Look>
  void run(std::deque<BoundUnit> units, const Look& look) {
    const std::size_t count = units.size();
    for (std::size_t advances = 0; pipeline.completed() < count; ++advances) {
      if (!units.empty() && trace.random() % 3 == 0) {
        pipeline.start(std::move(units.front()));
        units.pop_front();
      }
      pipeline.advance();
      look();
      ASSERT_LT(advances, kMostAdvances) << "no end";
    }
    EXPECT_FALSE(pipeline.polls());
    EXPECT_FALSE(pipeline.advance());
  }

  SharedControlBlock control_block;
  HeapNode node{1};
  HeapMemory memory{node, 0};
  Trace trace;
  FakeLocal local;
  FakeCross cross;
  Pipeline pipeline;
};

TEST(Pipeline, StartsEveryStageInOrderAndNeverExceedsItsSlots) {
  auto random = test::generator();
  for (int round = 0; round < 400; ++round) {
    PipelineOptions options{.node = 0, .nodes = 2, .local_rank = 0, .slices = 1, .slots = 4};
    options.slots = 1 + random() % 6;
    options.slices = 1 + static_cast<int>(random() % 4);
    options.local_rank = static_cast<int>(random() % static_cast<std::uint64_t>(options.slices));
    OneRank rank(options, random, random() % 8);

    // Uneven: most units end in a short chunk, some slices are empty.
    std::vector<Range> slices;
    std::vector<std::size_t> chunks_until_unit;
    std::deque<BoundUnit> units;
    for (std::uint64_t u = 1 + random() % 8; u > 0; --u) {
      const std::size_t bytes = random() % 4 == 0 ? 0 : 64 * (1 + random() % 60);
      units.push_back(unit_of(bytes, 64 * (1 + random() % 20)));
      for (std::size_t c = 0; c < units.back().unit.chunks(); ++c) {
        slices.push_back(
            slice_range(chunk_range(units.back().unit, c), options.local_rank, options.slices));
      }
      chunks_until_unit.push_back(slices.size());
    }
    rank.run(std::move(units), [&] {
      const std::uint64_t completed = rank.pipeline.completed();
      if (completed == 0) return;
      ASSERT_GE(rank.trace.gathers_complete, chunks_until_unit[completed - 1])
          << "complete before its last chunk was spread";
    });
    EXPECT_EQ(rank.trace.scattered, slices);
    EXPECT_EQ(rank.trace.gathered, slices);
    EXPECT_LE(rank.trace.most_in_use, options.slots);
    std::vector<std::uint64_t> sequences;
    std::vector<std::size_t> bytes;
    for (std::size_t i = 0; i < slices.size(); ++i) {
      if (slices[i].bytes == 0) continue;  // nothing to sum: but the number is used up
      sequences.push_back(i);
      bytes.push_back(slices[i].bytes);
    }
    EXPECT_EQ(rank.trace.sequences, sequences);
    EXPECT_EQ(rank.trace.crossed_bytes, bytes);
  }
}

TEST(Pipeline, StagesOverlap) {
  auto random = test::generator();
  OneRank rank({.node = 0, .nodes = 2, .local_rank = 0, .slices = 1, .slots = 4}, random, 20);
  std::size_t overlapping = 0;
  rank.run({unit_of(64 * 40, 64)}, [&] {
    if (!rank.trace.scatters_open.empty() && !rank.trace.crossing.empty()) ++overlapping;
  });
  EXPECT_EQ(rank.trace.most_in_use, 4u);
  EXPECT_GT(overlapping, 0u);
}

TEST(Pipeline, ARankWithoutASliceIsDoneAtOnceAndWaitsForItsPeers) {
  auto random = test::generator();
  SharedControlBlock control_block({.local_size = 2, .id_capacity = 8, .single_node = false});
  Trace trace(random, 3);
  FakeLocal local(trace);
  FakeCross cross(trace);
  const PipelineOptions options{.node = 0, .nodes = 2, .local_rank = 0, .slices = 1};
  PipelineOptions other = options;
  other.local_rank = 1;
  HeapNode node(2);
  HeapMemory memory(node, 0);
  Pipeline with_slice(options, control_block[0], memory, local, &cross);
  Pipeline without(other, control_block[1], memory, local, nullptr);
  for (Pipeline* pipeline : {&with_slice, &without}) pipeline->start(unit_of(640, 64));
  EXPECT_TRUE(without.advance());
  EXPECT_EQ(without.completed(), 0u);
  EXPECT_EQ(without.awaited(), 1u) << "its completion depends on local peers alone";
  EXPECT_EQ(with_slice.awaited(), 0u) << "it has work of its own";
  for (std::size_t i = 0; i < kMostAdvances && with_slice.completed() == 0; ++i) {
    with_slice.advance();
  }
  EXPECT_EQ(without.completed(), 1u);
  EXPECT_EQ(without.awaited(), 0u);
}

// An allreduce arrives in staging, and what is not lent is hora's.
TEST(Pipeline, WithdrawsWhatArrivesInCallersMemory) {
  auto random = test::generator();
  for (const bool is_lent : {true, false}) {
    for (const OperationKind kind : {OperationKind::broadcast, OperationKind::allreduce}) {
      OneRank rank({.node = 0, .nodes = 2, .local_rank = 0, .slices = 1}, random, 0);
      rank.trace.slowest = UINT64_MAX - 1;  // nothing completes
      BoundUnit unit = unit_of(64 * 3, 64, OperationKind::broadcast);
      EXPECT_EQ(rank.pipeline.withdraw(), MemoryUse::none);
      unit.unit.kind = kind;
      unit.is_lent = is_lent;
      rank.pipeline.start(std::move(unit));
      rank.trace.slowest = kind == OperationKind::broadcast ? rank.trace.slowest : 0;
      rank.pipeline.advance();
      const bool arrives = is_lent && kind == OperationKind::broadcast;
      EXPECT_EQ(rank.pipeline.withdraw(), arrives ? MemoryUse::writes : MemoryUse::none);
    }
  }
}

TEST(Pipeline, RefusesExchangesOnADeviceAndThoseThatRepeatWhatThisRankDoesNotKnow) {
  auto random = test::generator();
  PipelineOptions options{.node = 0, .nodes = 2, .local_rank = 0, .slices = 1};
  options.topology.ranks_of_node = {{0}, {1}};
  OneRank rank(options, random, 0);
  BoundUnit on_device = unit_of(0, 64, OperationKind::alltoall);
  on_device.unit.device = DeviceKind::cuda;
  on_device.work = {nullptr};
  test::expect_error(ErrorCode::invalid_argument,
                     testing::HasSubstr("alltoall of a tensor on cuda"),
                     [&] { rank.pipeline.start(std::move(on_device)); });
  EXPECT_FALSE(rank.pipeline.polls());
  BoundUnit repeated = unit_of(0, 64, OperationKind::allgather);
  const std::vector<std::int64_t> rows{5};
  repeated.exchange.rows = {rows};
  repeated.exchange.last = std::make_shared<LastExtents>();
  repeated.exchange.repeats = true;
  rank.pipeline.start(std::move(repeated));
  EXPECT_THROW(rank.pipeline.advance(), Error);
}

}  // namespace
}  // namespace hora::internal
