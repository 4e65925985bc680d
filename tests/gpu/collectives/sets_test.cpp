// Process sets and ranks that have joined, on a GPU's memory against the same on the CPU.
#include <gtest/gtest.h>
#include <hora/hora.h>

#include <algorithm>
#include <array>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/collectives/device_array.h"
#include "tests/gpu/collectives/values.h"
#include "tests/gpu/require_gpu.h"

namespace hora::internal::test {
namespace {

constexpr std::array kOps = {ReduceOp::sum, ReduceOp::min, ReduceOp::max};
constexpr std::int64_t kCount = 10007;

class GpuSets : public GpuTest {
 protected:
  /// Reduces whole numbers, so that the bytes must be equal.
  static void expect_reduced(const Context& world, ReduceOp op, std::uint64_t salt,
                             ProcessSet set) {
    Bytes expected = random_values(DataType::int32, kCount,
                                   salt * 1000 + static_cast<std::uint64_t>(world.rank()));
    const DeviceArray array(DataType::int32, expected);
    const std::string name(name_of(op));
    const TensorView on_gpu = array.view(world.device());
    Handle gpu =
        allreduce_async(world, on_gpu, {.name = name + ".gpu", .op = op, .process_set = set});
    allreduce(world, {expected.data(), DataType::int32, {kCount}, {}, nullptr},
              {.name = name + ".cpu", .op = op, .process_set = set});
    gpu.wait();
    EXPECT_EQ(array.read(nullptr), expected) << name << " on set " << set;
  }
};

std::vector<int> every(int step, int first, int size) {
  std::vector<int> ranks;
  for (int rank = first; rank < size; rank += step) ranks.push_back(rank);
  return ranks;
}

TEST_F(GpuSets, ThatOverlapWorkAtOnceFromSeveralThreads) {
  const Context world = init();
  const int size = world.size();
  std::vector<std::vector<int>> members = {every(1, 0, size), every(2, 0, size)};
  if (size > 1) members.push_back(every(2, 1, size));
  if (size > 2) members.push_back({0, size - 1});
  std::vector<std::jthread> threads;
  for (const auto& ranks : members) {
    const ProcessSet set = add_process_set(world, ranks);
    if (std::find(ranks.begin(), ranks.end(), world.rank()) == ranks.end()) continue;
    threads.emplace_back([&world, set] {
      cuda(cudaSetDevice(world.device().index));
      for (std::uint64_t round = 0; round < 20; ++round) {
        for (const ReduceOp op : kOps) expect_reduced(world, op, round, set);
      }
    });
  }
  for (std::uint64_t round = 0; round < 20; ++round)
    expect_reduced(world, ReduceOp::sum, round, kWorld);
}

TEST_F(GpuSets, ComeAndGo) {
  const Context world = init();
  for (std::uint64_t round = 0; round < 5; ++round) {
    const ProcessSet set = add_process_set(world, every(1, 0, world.size()));
    for (const ReduceOp op : kOps) expect_reduced(world, op, round, set);
    remove_process_set(world, set);
  }
}

TEST_F(GpuSets, RanksThatHaveJoinedLeaveTheOthersResultsAsTheyAre) {
  const Context world = init();
  for (int epoch = 0; epoch < 3; ++epoch) {
    const int rounds = 1 + (world.rank() + epoch) % 3;
    for (int round = 0; round < rounds; ++round) {
      for (const ReduceOp op : kOps) {
        expect_reduced(world, op, static_cast<std::uint64_t>(round), kWorld);
      }
    }
    join(world);
  }
}

}  // namespace
}  // namespace hora::internal::test
