#include <gtest/gtest.h>
#include <hora/hora.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace hora::internal {
namespace {

std::vector<float> random_floats(std::uint64_t seed, std::int64_t count) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

/// Whatever was fused, wherever a tensor lies: the same bits (with the direct algorithm).
TEST(Allreduce, BitsDependNeitherOnFusionNorOnPositionNorOnTheRun) {
  std::vector<std::vector<float>> first_run;
  for (int run = 0; run < 2; ++run) {
    const Context world = init();
    const auto seed = 77 + static_cast<std::uint64_t>(world.rank()) * 1000;
    constexpr std::size_t kTensors = 20;
    const auto count_of = [](std::size_t t) { return static_cast<std::int64_t>(1 + t * t * 61); };
    std::vector<std::vector<float>> alone, together;
    for (std::size_t t = 0; t < kTensors; ++t) {
      alone.push_back(random_floats(seed + t, count_of(t)));
      together.push_back(alone.back());
      allreduce(world, view(alone[t].data(), count_of(t)), {.name = "alone" + std::to_string(t)});
    }
    for (int round = 0; round < 4; ++round) {
      std::vector<Handle> handles;
      for (std::size_t t = 0; t < kTensors; ++t) {
        together[t] = random_floats(seed + t, count_of(t));
        handles.push_back(allreduce_async(world, view(together[t].data(), count_of(t)),
                                          {.name = "together" + std::to_string(t)}));
      }
      for (Handle& handle : handles) handle.wait();
      ASSERT_EQ(together, alone) << "round " << round;
    }
    Buffer bucket(world, 1 << 20);
    auto* inside = reinterpret_cast<float*>(bucket.data()) + 5;
    const auto values = random_floats(seed + 9, count_of(9));
    std::copy(values.begin(), values.end(), inside);
    allreduce(world, view(inside, count_of(9)), {.name = "bucket"});
    EXPECT_EQ(std::vector<float>(inside, inside + count_of(9)), alone[9]);
    if (run == 0) first_run = alone;
    EXPECT_EQ(alone, first_run);
  }
}

}  // namespace
}  // namespace hora::internal
