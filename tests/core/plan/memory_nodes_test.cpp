#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "core/plan/plan.h"

namespace hora::internal {
namespace {

constexpr MemoryNodes kOne;

MemoryNodes of(const std::vector<int>& of_rank) {
  return MemoryNodes::of(of_rank);
}

TEST(MemoryNodes, AreThoseThatRanksShareEvenly) {
  EXPECT_EQ(of({0, 0, 1, 1}), (MemoryNodes{.count = 2, .ranks = 2}));
  EXPECT_EQ(of({3, 3, 3, 1, 1, 1}), (MemoryNodes{.count = 2, .ranks = 3}));
  EXPECT_EQ(of({0, 0, 1, 1, 2, 2, 3, 3}), (MemoryNodes{.count = 4, .ranks = 2}));
}

TEST(MemoryNodes, AllRanksAreInOneOtherwise) {
  EXPECT_EQ(of({}), kOne);
  EXPECT_EQ(of({0}), kOne);
  EXPECT_EQ(of({0, 0, 0, 0}), kOne) << "there is one";
  EXPECT_EQ(of({0, 1}), kOne) << "no two ranks share one";
  EXPECT_EQ(of({0, 0, 0, 1, 1}), kOne) << "uneven";
  EXPECT_EQ(of({0, 0, 0, 1, 1, 2}), kOne) << "uneven";
  EXPECT_EQ(of({0, 0, 1, 1, 1, 1}), kOne) << "uneven";
  EXPECT_EQ(of({0, 1, 0, 1}), kOne) << "ranks are not next to each other";
  EXPECT_EQ(of({0, 0, 1, 1, 0, 0}), kOne) << "one comes again";
  EXPECT_EQ(of({-1, -1, 1, 1}), kOne) << "ranks that may use several";
  EXPECT_EQ(of({0, 0, 1, -1}), kOne) << "a rank that may use several";
}

TEST(MemoryNodes, OfASetAreThoseOfItsMembers) {
  const Topology world{{{0, 2, 4, 6, 1, 3, 5, 7}}};
  const std::vector<int> of_rank = virtual_memory_nodes(world, 4);
  EXPECT_EQ(of_rank, (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(MemoryNodes::of(world, of_rank), (MemoryNodes{.count = 2, .ranks = 4}));
  EXPECT_EQ(MemoryNodes::of(Topology{{{0, 2, 1, 3}}}, of_rank),
            (MemoryNodes{.count = 2, .ranks = 2}));
  EXPECT_EQ(MemoryNodes::of(Topology{{{0, 2, 1}}}, of_rank), kOne);
  EXPECT_EQ(MemoryNodes::of(Topology{{{0, 2, 4}}}, of_rank), kOne);
  EXPECT_EQ(MemoryNodes::of(Topology{{{0, 2}, {1, 3}}}, of_rank), kOne) << "several nodes";
}

TEST(MemoryNodes, VirtualOnesAreCountedInEachNode) {
  EXPECT_EQ(virtual_memory_nodes(Topology{{{0, 1, 2}, {3, 4, 5, 6}}}, 2),
            (std::vector<int>{0, 0, 1, 0, 0, 1, 1}));
}

/// Of one tensor, on four ranks.
class SumOf : public testing::Test {
 protected:
  Signature signature(DataType type = DataType::float32) const {
    Signature signature;
    signature.type = type;
    signature.shape = {
        static_cast<std::int64_t>(MemoryNodes::kLeastBytes / size_of(signature.type))};
    return signature;
  }
  BoundUnit unit(const Signature& signature) {
    const std::array decided{&signature};
    BoundUnit unit;
    unit.unit = plan(decided, {}).front();
    unit.local_size = 4;
    unit.memory.assign(4, &byte_);
    return unit;
  }
  /// As a submission of it, and as a unit of it alone, which must agree.
  bool apart(const Signature& signature) {
    const bool before = kTwo.sum_apart(signature, signature.bytes());
    EXPECT_EQ(kTwo.sum_apart(unit(signature)), before);
    return before;
  }
  static constexpr MemoryNodes kTwo{.count = 2, .ranks = 2};
  std::byte byte_{};
};

TEST_F(SumOf, ALargeTensorGoesByMemoryNodes) {
  for (const DataType type :
       {DataType::float32, DataType::float64, DataType::int8, DataType::boolean}) {
    EXPECT_TRUE(apart(signature(type))) << name_of(type);
  }
  EXPECT_FALSE(kOne.sum_apart(signature(), MemoryNodes::kLeastBytes));
  EXPECT_FALSE(kOne.sum_apart(unit(signature())));
}

TEST_F(SumOf, OthersAreOnePass) {
  EXPECT_FALSE(apart(signature(DataType::float16)));
  EXPECT_FALSE(apart(signature(DataType::bfloat16)));
  Signature other = signature();
  other.prescale = 0.5;
  EXPECT_FALSE(apart(other));
  other = signature();
  other.kind = OperationKind::broadcast;
  EXPECT_FALSE(apart(other));
  other = signature();
  other.shape[0] -= 16;
  EXPECT_FALSE(apart(other));
}

TEST_F(SumOf, RanksThatHaveJoinedLackIsOnePass) {
  const Signature whole = signature();
  for (std::size_t rank = 0; rank < 4; ++rank) {
    BoundUnit lacks = unit(whole);
    lacks.memory[rank] = nullptr;
    EXPECT_FALSE(kTwo.sum_apart(lacks)) << rank;
  }
}

TEST_F(SumOf, AnEmptyTensorIsLackedByNoRank) {
  const Signature whole = signature();
  Signature empty = whole;
  empty.shape = {0};
  const std::array<const Signature*, 2> decided{&empty, &whole};
  BoundUnit unit;
  unit.unit = plan(decided, {.fusion_bytes = std::size_t{1} << 30}).front();
  ASSERT_EQ(unit.unit.tensors.size(), 2U);
  unit.local_size = 4;
  unit.memory.assign(8, &byte_);
  unit.memory[0] = nullptr;
  EXPECT_TRUE(kTwo.sum_apart(unit));
}

}  // namespace
}  // namespace hora::internal
