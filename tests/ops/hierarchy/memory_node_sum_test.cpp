#include "ops/hierarchy/memory_node_sum.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <ostream>
#include <random>
#include <thread>
#include <vector>

#include "ops/hierarchy/memory_group.h"
#include "tests/support/reference/elements.h"
#include "tests/support/seed.h"

namespace hora::internal {
namespace {

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
    unit_ = plan(pointers, {.fusion_bytes = std::size_t{1} << 30}).at(0);
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
