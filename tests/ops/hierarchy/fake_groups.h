/// Local and cross groups whose work completes after random numbers of polls, in any order, and
/// that check and note what the pipeline asks of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ops/hierarchy/memory_group.h"
#include "ops/hierarchy/pipeline.h"
#include "tests/core/control_block/shared_control_block.h"
#include "tests/support/threads/heap_memory.h"

namespace hora::internal::test {

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
  MemoryUse withdraw() override { return complete_ ? MemoryUse::none : MemoryUse::writes; }

 private:
  std::uint64_t polls_;
  std::function<void()> done_;
  bool complete_ = false;
};

/// What the pipeline has asked for, checked as it asks.
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
  std::string steps;                       ///< both, in the order of their start: r and g
  std::vector<std::uint64_t> sequences;    ///< of the cross group
  std::vector<std::size_t> crossed_bytes;
  std::set<const std::byte*> staging_in_use;
  std::size_t most_in_use = 0;
  std::size_t gathers_complete = 0;
  std::size_t runs_complete = 0;
  std::set<std::uint64_t> scatters_open;  ///< their order numbers
  std::set<const std::byte*> crossing;
  std::set<std::uint64_t> exchanging;  ///< their sequence numbers
};

struct FakeLocal final : LocalGroup {
  explicit FakeLocal(Trace& t) : trace(t) {}

  bool is_collective() const override { return collective; }
  std::byte* staging(const ChunkPart& part) override { return memory.staging(part); }
  Completion run(const BoundUnit&) override {
    EXPECT_EQ(trace.runs_complete, runs_started++) << "one unit after the other";
    return trace.slow([this] { ++trace.runs_complete; });
  }
  Completion reduce_scatter(const ChunkPart& part) override {
    if (!part.has_input) return {};
    const std::byte* staged = staging(part);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(staged) % 64, 0u);
    EXPECT_TRUE(trace.staging_in_use.insert(staged).second) << "the slot is in use";
    trace.most_in_use = std::max(trace.most_in_use, trace.staging_in_use.size());
    const std::uint64_t number = trace.scattered.size();
    trace.scattered.push_back(part.slice);
    trace.steps.push_back('r');
    trace.scatters_open.insert(number);
    return trace.slow([this, number] { trace.scatters_open.erase(number); });
  }
  Completion all_gather(const ChunkPart& part) override {
    const std::byte* staged = staging(part);
    EXPECT_FALSE(trace.crossing.contains(staged)) << "before the network is done with it";
    trace.staging_in_use.insert(staged);  // a broadcast's slot has no input here
    trace.gathered.push_back(part.slice);
    trace.steps.push_back('g');
    return trace.slow([this, staged] {
      trace.staging_in_use.erase(staged);
      ++trace.gathers_complete;
    });
  }

  MemoryGroup memory{0, 1};
  bool collective = false;
  Trace& trace;
  std::size_t runs_started = 0;
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
  Completion exchange(std::span<const std::span<const std::byte>> sends,
                      std::span<const std::span<std::byte>> receives,
                      std::uint64_t sequence) override {
    EXPECT_EQ(sends.size(), 2u);
    EXPECT_EQ(receives.size(), 2u);
    trace.sequences.push_back(sequence);
    trace.exchanging.insert(sequence);
    return trace.slow([this, sequence] { trace.exchanging.erase(sequence); });
  }

  Trace& trace;
};

inline BoundUnit unit_of(std::size_t bytes, std::size_t chunk_bytes,
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

struct OneRank {
  OneRank(const PipelineOptions& options, Random& random, std::uint64_t slowest)
      : control_block({.local_size = 1, .id_capacity = 8, .single_node = false}),
        trace(random, slowest),
        local(trace),
        cross(trace),
        pipeline(options, control_block[0], memory, {.memory = &local},
                 {.memory = options.nodes > 1 ? &cross : nullptr}) {}

  SharedControlBlock control_block;
  HeapNode node{1};
  HeapMemory memory{node, 0};
  Trace trace;
  FakeLocal local;
  FakeCross cross;
  Pipeline pipeline;
};

inline constexpr std::size_t kMostAdvances = 100000;

}  // namespace hora::internal::test
