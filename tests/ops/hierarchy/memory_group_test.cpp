/// A unit over the memory of a node's ranks, with guard bytes around every tensor.
#include "ops/hierarchy/memory_group.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <numeric>
#include <ostream>
#include <random>
#include <thread>
#include <vector>

#include "core/plan/plan.h"
#include "tests/support/reference/elements.h"
#include "tests/support/seed.h"

namespace hora::internal::test {

/// Tensors of one type on `local_size` ranks, each filled with small whole numbers.
template <class T>
class BoundTensors {
 public:
  BoundTensors(const std::vector<std::int64_t>& elements, int local_size, std::mt19937_64& random)
      : elements_(elements), local_size_(local_size) {
    for (std::size_t t = 0; t < elements.size(); ++t) {
      for (int r = 0; r < local_size; ++r) {
        const auto count = static_cast<std::size_t>(elements[t]);
        auto& values = memory_.emplace_back(count + 2 * kGuard, kGuardValue);
        for (std::size_t i = 0; i < count; ++i) {
          values[kGuard + i] = static_cast<T>(static_cast<int>(random() % 50));
        }
      }
    }
    before_ = memory_;
  }

  BoundUnit unit(OperationKind kind, const PlanLimits& limits, double scale = 1.0) {
    std::vector<Signature> signatures;
    for (const std::int64_t count : elements_) {
      Signature signature;
      signature.kind = kind;
      signature.type = data_type_of<T>;
      signature.shape = {count};
      signatures.push_back(signature);
    }
    std::vector<const Signature*> pointers;
    for (const Signature& signature : signatures) pointers.push_back(&signature);
    BoundUnit bound;
    plan_unit(pointers, 0, limits, bound.unit);
    bound.scale = scale;
    bound.local_size = local_size_;
    for (auto& values : memory_) {
      bound.memory.push_back(reinterpret_cast<std::byte*>(values.data() + kGuard));
    }
    return bound;
  }

  T before(std::size_t tensor, int rank, std::size_t at) const {
    return before_[index(tensor, rank)][kGuard + at];
  }
  T now(std::size_t tensor, int rank, std::size_t at) const {
    return memory_[index(tensor, rank)][kGuard + at];
  }
  T sum(std::size_t tensor, std::size_t at) const {
    T result{};
    for (int r = 0; r < local_size_; ++r) result = static_cast<T>(result + before(tensor, r, at));
    return result;
  }
  bool unchanged() const { return memory_ == before_; }
  bool guards_intact() const {
    for (const auto& values : memory_) {
      for (std::size_t i = 0; i < kGuard; ++i) {
        if (values[i] != kGuardValue || values[values.size() - 1 - i] != kGuardValue) return false;
      }
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 8;
  static constexpr T kGuardValue = static_cast<T>(99);
  std::size_t index(std::size_t tensor, int rank) const {
    return tensor * static_cast<std::size_t>(local_size_) + static_cast<std::size_t>(rank);
  }

  std::vector<std::int64_t> elements_;
  int local_size_;
  std::vector<std::vector<T>> memory_;
  std::vector<std::vector<T>> before_;
};

}  // namespace hora::internal::test

namespace hora::internal {
namespace {

using test::BoundTensors;

constexpr PlanLimits kOneUnit{.fusion_bytes = 1 << 20, .chunk_bytes = 1 << 10};
const std::vector<std::int64_t> kElements = {1, 300, 0, 16, 17, 777};

class MemoryGroupOf : public testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  std::mt19937_64 random_ = test::generator();

  /// Every rank its slice of the whole unit, ranks in a random order.
  void run_all(const BoundUnit& unit) {
    for (const int rank : shuffled()) {
      MemoryGroup group(rank, ranks());
      EXPECT_TRUE(group.run(unit).poll());
    }
  }
  std::vector<int> shuffled() {
    std::vector<int> order(static_cast<std::size_t>(ranks()));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    return order;
  }
  /// On every rank each element of every tensor is `expected(tensor, at)`.
  template <class T, class F>
  void expect_everywhere(const BoundTensors<T>& tensors, F&& expected) {
    for (std::size_t t = 0; t < kElements.size(); ++t) {
      for (int r = 0; r < ranks(); ++r) {
        for (std::size_t i = 0; i < static_cast<std::size_t>(kElements[t]); ++i) {
          ASSERT_EQ(tensors.now(t, r, i), expected(t, i))
              << "tensor " << t << " rank " << r << " at " << i;
        }
      }
    }
    EXPECT_TRUE(tensors.guards_intact());
  }
};

TEST_P(MemoryGroupOf, SumsAndScalesOnAllRanks) {
  BoundTensors<float> tensors(kElements, ranks(), random_);
  run_all(tensors.unit(OperationKind::allreduce, kOneUnit, 0.25));
  expect_everywhere(tensors,
                    [&](std::size_t t, std::size_t i) { return tensors.sum(t, i) * 0.25F; });
}

TEST_P(MemoryGroupOf, SumsIntegersAndBytes) {
  BoundTensors<std::int64_t> wide(kElements, ranks(), random_);
  run_all(wide.unit(OperationKind::allreduce, kOneUnit));
  expect_everywhere(wide, [&](std::size_t t, std::size_t i) { return wide.sum(t, i); });
  BoundTensors<std::uint8_t> narrow(kElements, ranks(), random_);
  run_all(narrow.unit(OperationKind::allreduce, kOneUnit));
  expect_everywhere(narrow, [&](std::size_t t, std::size_t i) { return narrow.sum(t, i); });
}

TEST_P(MemoryGroupOf, BroadcastsFromEachRoot) {
  for (int root = 0; root < ranks(); ++root) {
    BoundTensors<double> tensors(kElements, ranks(), random_);
    BoundUnit unit = tensors.unit(OperationKind::broadcast, kOneUnit);
    unit.root_local = root;
    run_all(unit);
    expect_everywhere(tensors,
                      [&](std::size_t t, std::size_t i) { return tensors.before(t, root, i); });
  }
}

// As the pipeline calls it, with any number of slices up to the number of ranks.
TEST_P(MemoryGroupOf, ScatterIntoStagingAndGatherGiveTheSum) {
  for (int slices = 1; slices <= ranks(); ++slices) {
    BoundTensors<float> tensors(kElements, ranks(), random_);
    const BoundUnit unit = tensors.unit(OperationKind::allreduce, kOneUnit, 0.5);
    struct Part {
      int owner;
      MemoryGroup group;
      ChunkPart chunk;
      float* staging() { return reinterpret_cast<float*>(group.staging(chunk)); }
    };
    std::vector<Part> parts;
    for (std::size_t c = 0; c < unit.unit.chunks(); ++c) {
      for (int s = 0; s < slices; ++s) {
        const Range chunk = chunk_range(unit.unit, c);
        const Range slice = slice_range(chunk, s, slices);
        parts.push_back({s, MemoryGroup(s, ranks()), {unit, chunk, slices, slice, c % 3}});
        EXPECT_TRUE(parts.back().group.reduce_scatter(parts.back().chunk).poll());
      }
    }
    // Staging, which may be an owner's own slice, holds the sums, not scaled; all else is as
    // before.
    for (Part& part : parts) {
      for_each_run(unit.unit, part.chunk.slice, [&](const auto& run) {
        const std::size_t first = run.range.begin / sizeof(float);
        for (std::size_t i = 0; i < run.range.bytes / sizeof(float); ++i) {
          const float staged = part.staging()[run.offset / sizeof(float) + i];
          ASSERT_EQ(staged, tensors.sum(run.tensor, first + i));
          for (int r = 0; r < ranks(); ++r) {
            if (r == part.owner) continue;
            ASSERT_EQ(tensors.now(run.tensor, r, first + i),
                      tensors.before(run.tensor, r, first + i));
          }
        }
      });
    }
    for (Part& part : parts) {
      float* const staging = part.staging();
      for (std::size_t i = 0; i < part.chunk.slice.bytes / 4; ++i) {
        staging[i] *= 0.5F;  // what the cross group does
      }
    }
    std::vector<std::size_t> order(parts.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::shuffle(order.begin(), order.end(), random_);
    for (const std::size_t i : order) EXPECT_TRUE(parts[i].group.all_gather(parts[i].chunk).poll());
    expect_everywhere(tensors,
                      [&](std::size_t t, std::size_t i) { return tensors.sum(t, i) * 0.5F; });
  }
}

TEST_P(MemoryGroupOf, ABroadcastsStagingHoldsTheRootsBytes) {
  const int root = ranks() - 1;
  BoundTensors<std::int32_t> tensors(kElements, ranks(), random_);
  BoundUnit unit = tensors.unit(OperationKind::broadcast, kOneUnit);
  unit.root_local = root;
  const Range whole{0, unit.unit.bytes};
  MemoryGroup group(0, ranks());
  const ChunkPart part{unit, whole, 1, whole, 0};
  EXPECT_TRUE(group.reduce_scatter(part).poll());
  EXPECT_TRUE(tensors.unchanged());
  EXPECT_TRUE(group.all_gather(part).poll());
  expect_everywhere(tensors,
                    [&](std::size_t t, std::size_t i) { return tensors.before(t, root, i); });
}

// What crosses of one tensor without padding needs no memory beside it.
TEST_P(MemoryGroupOf, ASliceOfOneTensorIsSummedWhereItLies) {
  for (const double prescale : {1.0, 0.5}) {
    BoundTensors<float> tensors({512}, ranks(), random_);
    BoundUnit unit = tensors.unit(OperationKind::allreduce, kOneUnit);
    unit.unit.prescale = prescale;
    const Range whole{0, unit.unit.bytes};
    for (const int rank : shuffled()) {
      MemoryGroup group(rank, ranks());
      const Range slice = slice_range(whole, rank, ranks());
      const ChunkPart part{unit, whole, ranks(), slice, 0};
      EXPECT_TRUE(group.reduce_scatter(part).poll());
      EXPECT_EQ(group.staging(part), unit.tensor(0, rank) + slice.begin);
    }
    for (const int rank : shuffled()) {
      MemoryGroup group(rank, ranks());
      const ChunkPart part{unit, whole, ranks(), slice_range(whole, rank, ranks()), 0};
      EXPECT_TRUE(group.all_gather(part).poll());
    }
    for (int r = 0; r < ranks(); ++r) {
      for (std::size_t i = 0; i < 512; ++i) {
        ASSERT_EQ(tensors.now(0, r, i), tensors.sum(0, i) * static_cast<float>(prescale));
      }
    }
    EXPECT_TRUE(tensors.guards_intact());
  }
}

TEST_P(MemoryGroupOf, ASliceWithPaddingOrOfATensorThatTheRankLacksIsStaged) {
  BoundTensors<float> tensors({500}, ranks(), random_);
  BoundUnit unit = tensors.unit(OperationKind::allreduce, kOneUnit);
  MemoryGroup group(0, ranks());
  const Range whole{0, unit.unit.bytes};
  ASSERT_GT(whole.bytes, 2000U);
  EXPECT_NE(group.staging({unit, whole, 1, whole, 0}), unit.tensor(0, 0));
  const Range first{0, 64};
  EXPECT_EQ(group.staging({unit, whole, 1, first, 0}), unit.tensor(0, 0));
  unit.memory[0] = nullptr;
  EXPECT_NE(group.staging({unit, whole, 1, first, 0}), nullptr);
}

TEST_P(MemoryGroupOf, ABroadcastOfOneTensorCrossesFromAndToTheTensor) {
  const int root = ranks() - 1;
  const std::vector<std::int64_t> elements = {512};
  for (const bool has_input : {true, false}) {
    BoundTensors<std::int32_t> tensors(elements, ranks(), random_);
    BoundUnit unit = tensors.unit(OperationKind::broadcast, kOneUnit);
    unit.root_local = has_input ? root : -1;
    const Range whole{0, unit.unit.bytes};
    for (int rank = 0; rank < ranks(); ++rank) {
      MemoryGroup group(rank, ranks());
      const Range slice = slice_range(whole, rank, ranks());
      const ChunkPart part{unit, whole, ranks(), slice, 0, has_input};
      EXPECT_TRUE(group.reduce_scatter(part).poll());
      std::byte* const staging = group.staging(part);
      const int owner = has_input ? root : rank;
      EXPECT_EQ(staging, unit.tensor(0, owner) + slice.begin);
      if (!has_input) std::memset(staging, 7, slice.bytes);  // what the cross group does
      EXPECT_TRUE(group.all_gather(part).poll());
    }
    EXPECT_TRUE(tensors.guards_intact());
    for (int r = 0; r < ranks(); ++r) {
      for (std::size_t i = 0; i < 512; ++i) {
        ASSERT_EQ(tensors.now(0, r, i), has_input ? tensors.before(0, root, i) : 0x07070707);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, MemoryGroupOf, testing::Values(1, 2, 3, 5),
                         testing::PrintToStringParamName());

using Bytes = std::vector<std::byte>;

constexpr int kRoot = 1;
constexpr std::uint64_t kNumber = 3;

/// Three ranks: the root, one that fetches, and one whose memory others write.
class BroadcastInNodeOfThree : public testing::Test {
 protected:
  /// One unit of tensors of these lengths.
  void bring(const std::vector<std::int64_t>& lengths) {
    std::vector<Signature> signatures;
    for (const std::int64_t length : lengths) {
      Signature signature;
      signature.kind = OperationKind::broadcast;
      signature.type = DataType::uint8;
      signature.shape = {length};
      signatures.push_back(signature);
      const auto bytes = static_cast<std::size_t>(length);
      auto& sent = sent_.emplace_back(bytes);
      for (std::byte& each : sent) each = static_cast<std::byte>(random_());
      for (auto* memory : {&block_, &fetched_, &window_}) memory->emplace_back(bytes);
    }
    std::vector<const Signature*> pointers;
    for (const Signature& signature : signatures) pointers.push_back(&signature);
    plan_unit(pointers, 0, {.fusion_bytes = std::size_t{1} << 30}, unit_);
  }
  BoundUnit unit_of(int rank, bool publishes) {
    BoundUnit bound;
    bound.number = kNumber;
    bound.unit = unit_;
    bound.local_size = 3;
    bound.root_local = kRoot;
    for (std::size_t i = 0; i < sent_.size(); ++i) {
      if (!publishes) block_[i] = sent_[i];
      if (publishes && rank == kRoot) bound.publishes.push_back({i, sent_[i].data()});
      if (rank == 0) bound.fetches.push_back({i, fetched_[i].data()});
      bound.memory.insert(bound.memory.end(), {nullptr, block_[i].data(), window_[i].data()});
    }
    return bound;
  }
  BroadcastInNode run(const BoundUnit& unit, int rank) {
    return {unit, UnitProgress(cells_.data(), rank), groups_[static_cast<std::size_t>(rank)], rank};
  }

  std::mt19937_64 random_ = test::generator();
  Unit unit_;
  std::vector<Bytes> sent_, block_, fetched_, window_;
  std::array<UnitProgressCell, 3> cells_{};
  std::array<MemoryGroup, 3> groups_ = {MemoryGroup(0, 3), MemoryGroup(1, 3), MemoryGroup(2, 3)};
};

constexpr auto kFollowed = static_cast<std::int64_t>(kFollowedBytes);

TEST_F(BroadcastInNodeOfThree, OthersWaitForTheRootAndGetItsBytes) {
  bring({70, kFollowed + 12345, 3, kFollowed});
  const BoundUnit fetching = unit_of(0, true), root = unit_of(1, true), written = unit_of(2, true);
  auto fetcher = run(fetching, 0), sender = run(root, 1), receiver = run(written, 2);
  EXPECT_FALSE(fetcher.poll());
  EXPECT_FALSE(receiver.poll());
  EXPECT_TRUE(sender.poll());
  EXPECT_TRUE(fetcher.poll());
  EXPECT_TRUE(receiver.poll());
  EXPECT_EQ(fetched_, sent_);
  EXPECT_EQ(window_, sent_);
  EXPECT_EQ(block_, sent_);
}

TEST_F(BroadcastInNodeOfThree, WhoFetchesTakesWhatThereIs) {
  bring({100, 3 * kFollowed});
  const BoundUnit fetching = unit_of(0, true);
  auto fetcher = run(fetching, 0);
  block_ = sent_;
  // Half a step of the second tensor is in the first three steps of the unit.
  constexpr std::size_t kTold = 3 * UnitProgress::kStep;
  const std::size_t reached = kTold - unit_.tensors[1].range.begin;
  UnitProgress(cells_.data(), kRoot).leave(kNumber, kTold);
  EXPECT_FALSE(fetcher.poll());
  EXPECT_EQ(fetched_[0], sent_[0]);
  for (std::size_t i = 0; i < sent_[1].size(); ++i) {
    ASSERT_EQ(fetched_[1][i], i < reached ? sent_[1][i] : std::byte{0}) << i;
  }
  EXPECT_FALSE(fetcher.poll());
  UnitProgress(cells_.data(), kRoot).leave_all(kNumber);
  EXPECT_TRUE(fetcher.poll());
  EXPECT_EQ(fetched_, sent_);
}

// Small tensors are there when all have arrived; no rank writes its progress.
TEST_F(BroadcastInNodeOfThree, WhatIsNotFollowedIsThereAlready) {
  bring({70, 4096, kFollowed - 1});
  const BoundUnit fetching = unit_of(0, false), root = unit_of(1, false),
                  written = unit_of(2, false);
  auto receiver = run(written, 2), fetcher = run(fetching, 0), sender = run(root, 1);
  EXPECT_TRUE(receiver.poll());
  EXPECT_TRUE(fetcher.poll());
  EXPECT_TRUE(sender.poll());
  EXPECT_EQ(fetched_, sent_);
  EXPECT_EQ(window_, sent_);
  EXPECT_EQ(cells_[kRoot].position.load(), 0U);
}

constexpr std::uint64_t kSumNumber = 5;

struct MemoryLayout {
  MemoryNodes nodes;
  friend std::ostream& operator<<(std::ostream& out, const MemoryLayout& layout) {
    return out << layout.nodes.count << "x" << layout.nodes.ranks;
  }
};

/// Tensors of one type on all ranks of a node, the same values in each run.
class SummedTensors {
 public:
  SummedTensors(DataType type, const std::vector<std::int64_t>& elements, int ranks,
                std::uint64_t seed)
      : ranks_(ranks) {
    std::mt19937_64 random(seed);
    std::vector<Signature> signatures;
    for (const std::int64_t count : elements) {
      Signature& signature = signatures.emplace_back();
      signature.type = type;
      signature.shape = {count};
      for (int r = 0; r < ranks; ++r) fill(type, memory_.emplace_back(signature.bytes()), random());
    }
    std::vector<const Signature*> pointers;
    for (const Signature& signature : signatures) pointers.push_back(&signature);
    plan_unit(pointers, 0, {.fusion_bytes = std::size_t{1} << 30}, unit_);
    if (unit_.tensors.size() != elements.size()) throw std::logic_error("several units");
  }
  BoundUnit unit(ReduceOp op, double scale) {
    BoundUnit bound;
    bound.number = kSumNumber;
    bound.unit = unit_;
    bound.unit.op = op;
    bound.scale = scale;
    bound.local_size = ranks_;
    for (auto& bytes : memory_) bound.memory.push_back(bytes.data());
    return bound;
  }
  const std::vector<std::vector<std::byte>>& memory() const { return memory_; }

 private:
  /// Cheap, for there are many: high bits of multiples of an odd number.
  static void fill(DataType type, std::vector<std::byte>& bytes, std::uint64_t first) {
    test::with_type(type, [&]<class T>() {
      auto* const values = reinterpret_cast<test::Stored<T>*>(bytes.data());
      std::uint64_t bits = first;
      for (std::size_t i = 0; i < bytes.size() / sizeof *values; ++i) {
        bits += 0x9e3779b97f4a7c15;
        if constexpr (std::is_floating_point_v<T>) {
          values[i] = static_cast<T>(static_cast<std::int32_t>(bits >> 32)) * T{0x1p-28};
        } else {
          values[i] = test::Stored<T>(static_cast<int>(bits >> 58));
        }
      }
    });
  }

  int ranks_;
  Unit unit_;
  std::vector<std::vector<std::byte>> memory_;  ///< by tensor, then rank
};

class MemoryNodeSumOf : public testing::TestWithParam<MemoryLayout> {
 protected:
  MemoryNodes nodes() const { return GetParam().nodes; }
  int ranks() const { return nodes().count * nodes().ranks; }
  UnitProgress progress(int rank) { return {cells_.data(), rank}; }

  void forget_progress() {
    for (UnitProgressCell& cell : cells_) cell.position.store(0, std::memory_order_relaxed);
  }
  /// By one pass over all ranks.
  void sum_at_once(const BoundUnit& unit) {
    for (int rank = 0; rank < ranks(); ++rank) {
      EXPECT_TRUE(MemoryGroup(rank, ranks()).run(unit).poll());
    }
  }
  /// All ranks take turns, at random; `unit_of(rank)` is what a rank sees.
  template <class UnitOf>
  void sum_in_turns(UnitOf&& unit_of) {
    std::vector<std::unique_ptr<MemoryNodeSum>> running;
    for (int rank = 0; rank < ranks(); ++rank) {
      running.push_back(
          std::make_unique<MemoryNodeSum>(unit_of(rank), nodes(), rank, progress(rank)));
    }
    constexpr int kMostTurns = 100000;
    for (int turn = 0; turn < kMostTurns && !running.empty(); ++turn) {
      const auto next = running.begin() + static_cast<long>(random_() % running.size());
      if ((*next)->poll()) running.erase(next);
    }
    EXPECT_TRUE(running.empty()) << "ranks wait for one another";
  }

  std::mt19937_64 random_ = test::generator();
  std::vector<UnitProgressCell> cells_ = std::vector<UnitProgressCell>(64);
};

const std::vector<std::int64_t> kSumElements = {1, 70000, 0, 16, 17, 131072, 100001};

TEST_P(MemoryNodeSumOf, HasTheBitsOfOnePassOverAllRanks) {
  for (const DataType type : {DataType::float32, DataType::float64, DataType::int32,
                              DataType::uint8, DataType::boolean, DataType::int16}) {
    for (const ReduceOp op :
         {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
      // Of the others than sums a part, drawn by the seed: under a sanitizer each takes long.
      if (type != DataType::float32 && op != ReduceOp::sum && random_() % 3 != 0) continue;
      const std::uint64_t seed = random_();
      const double scale = op == ReduceOp::average ? 1.0 / ranks() : 1.0;
      SummedTensors expected(type, kSumElements, ranks(), seed),
          tensors(type, kSumElements, ranks(), seed);
      sum_at_once(expected.unit(op, scale));
      const BoundUnit unit = tensors.unit(op, scale);
      forget_progress();
      sum_in_turns([&](int) -> const BoundUnit& { return unit; });
      ASSERT_EQ(tensors.memory(), expected.memory()) << name_of(type) << " " << name_of(op);
    }
  }
}

TEST_P(MemoryNodeSumOf, TensorsThatAreShorterThanARankAreSummed) {
  for (const std::int64_t count : {1, 15, 16, 17, 40, 100}) {
    const std::uint64_t seed = random_();
    SummedTensors expected(DataType::float32, {count}, ranks(), seed);
    SummedTensors tensors(DataType::float32, {count}, ranks(), seed);
    sum_at_once(expected.unit(ReduceOp::sum, 0.5));
    const BoundUnit unit = tensors.unit(ReduceOp::sum, 0.5);
    forget_progress();
    sum_in_turns([&](int) -> const BoundUnit& { return unit; });
    ASSERT_EQ(tensors.memory(), expected.memory()) << count;
  }
}

/// Whoever touches it ends the process.
class NoAccess {
 public:
  explicit NoAccess(std::size_t bytes)
      : bytes_(bytes),
        data_(::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {}
  ~NoAccess() { ::munmap(data_, bytes_); }
  NoAccess(const NoAccess&) = delete;
  NoAccess& operator=(const NoAccess&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

TEST_P(MemoryNodeSumOf, ARankTouchesOfOtherMemoryNodesWhatItsLikeHasThere) {
  constexpr std::int64_t kCount = 400000;
  const NoAccess beyond(kCount * sizeof(float));
  const std::uint64_t seed = random_();
  SummedTensors expected(DataType::float32, {kCount}, ranks(), seed);
  SummedTensors tensors(DataType::float32, {kCount}, ranks(), seed);
  sum_at_once(expected.unit(ReduceOp::sum, 1.0));
  std::vector<BoundUnit> seen;
  for (int rank = 0; rank < ranks(); ++rank) {
    BoundUnit& unit = seen.emplace_back(tensors.unit(ReduceOp::sum, 1.0));
    for (int other = 0; other < ranks(); ++other) {
      const bool is_near = other / nodes().ranks == rank / nodes().ranks;
      const bool is_like = other % nodes().ranks == rank % nodes().ranks;
      if (!is_near && !is_like) unit.memory[static_cast<std::size_t>(other)] = beyond.data();
    }
  }
  sum_in_turns([&](int rank) -> const BoundUnit& { return seen[static_cast<std::size_t>(rank)]; });
  EXPECT_EQ(tensors.memory(), expected.memory());
}

TEST_P(MemoryNodeSumOf, NoRankGoesOnWithoutTheOneBefore) {
  SummedTensors tensors(DataType::float32, {400000}, ranks(), random_());
  const auto before = tensors.memory();
  const BoundUnit unit = tensors.unit(ReduceOp::sum, 1.0);
  // All but the first memory node's ranks, then those of it but one.
  for (int rank = nodes().ranks; rank < ranks(); ++rank) {
    MemoryNodeSum waits(unit, nodes(), rank, progress(rank));
    EXPECT_FALSE(waits.poll());
  }
  EXPECT_EQ(tensors.memory(), before);
}

// A rank that is done may be in its next units before others have read what it has announced.
TEST_P(MemoryNodeSumOf, RanksOfLaterUnitsHaveAnnouncedAllOfThisOne) {
  const std::uint64_t seed = random_();
  SummedTensors expected(DataType::float32, {400000}, ranks(), seed);
  SummedTensors tensors(DataType::float32, {400000}, ranks(), seed);
  sum_at_once(expected.unit(ReduceOp::sum, 1.0));
  const BoundUnit unit = tensors.unit(ReduceOp::sum, 1.0);
  std::vector<std::unique_ptr<MemoryNodeSum>> sums;
  for (int rank = 0; rank < ranks(); ++rank) {
    sums.push_back(std::make_unique<MemoryNodeSum>(unit, nodes(), rank, progress(rank)));
    const bool is_last = rank / nodes().ranks == nodes().count - 1;
    EXPECT_EQ(sums.back()->poll(), is_last);
    if (is_last) progress(rank).leave(kSumNumber + 2, 0);
  }
  for (int rank = 0; rank < ranks() - nodes().ranks; ++rank) {
    EXPECT_TRUE(sums[static_cast<std::size_t>(rank)]->poll());
  }
  EXPECT_EQ(tensors.memory(), expected.memory());
}

TEST_P(MemoryNodeSumOf, RanksThatRunAtOnceSumTheSame) {
  for (int round = 0; round < 3; ++round) {
    const std::uint64_t seed = random_();
    SummedTensors expected(DataType::float32, {300000}, ranks(), seed);
    SummedTensors tensors(DataType::float32, {300000}, ranks(), seed);
    sum_at_once(expected.unit(ReduceOp::sum, 1.0));
    const BoundUnit unit = tensors.unit(ReduceOp::sum, 1.0);
    forget_progress();
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < ranks(); ++rank) {
        threads.emplace_back([&, rank] {
          MemoryNodeSum sum(unit, nodes(), rank, progress(rank));
          while (!sum.poll()) std::this_thread::yield();
        });
      }
    }
    ASSERT_EQ(tensors.memory(), expected.memory()) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, MemoryNodeSumOf,
                         testing::Values(MemoryLayout{{.count = 2, .ranks = 2}},
                                         MemoryLayout{{.count = 2, .ranks = 3}},
                                         MemoryLayout{{.count = 3, .ranks = 2}},
                                         MemoryLayout{{.count = 4, .ranks = 4}}),
                         testing::PrintToStringParamName());

}  // namespace

}  // namespace hora::internal
