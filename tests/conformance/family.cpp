#include "tests/conformance/family.h"

#include <gtest/gtest.h>

#include <utility>

namespace hora::test {
namespace {

constexpr std::int64_t kRows = 12;  ///< divisible by 1, 2, 3 and 4 ranks

using Values = std::vector<float>;

Values ones() {
  return Values(kRows, 1.0F);
}

/// The set's ranks have brought ones.
void expect_all(const Result& result, std::int64_t rows, float value) {
  ASSERT_EQ(result.shape(), Shape{rows});
  for (const float element : result.values<float>()) EXPECT_EQ(element, value);
}

Family allreduce_family() {
  return {"allreduce",
          [](const Context& world, Values& values, const std::string& name, ProcessSet set) {
            return allreduce_async(world, view(values.data(), kRows),
                                   {.name = name, .op = ReduceOp::sum, .process_set = set});
          },
          [](const Context& world, const std::string& name, ProcessSet set) {
            Values values = ones();
            allreduce(world, view(values.data(), kRows),
                      {.name = name, .op = ReduceOp::sum, .process_set = set});
            EXPECT_EQ(values, Values(kRows, static_cast<float>(size_of(world, set))));
          }};
}

/// From the world's rank 0, or the set's first: its number alone comes from ranks_of(), which
/// refuses sets that do not exist as the collective itself does.
Family broadcast_family() {
  const auto options = [](const Context& world, const std::string& name, ProcessSet set) {
    return BroadcastOptions{.name = name, .root = ranks_of(world, set).front(), .process_set = set};
  };
  return {"broadcast",
          [=](const Context& world, Values& values, const std::string& name, ProcessSet set) {
            return broadcast_async(world, view(values.data(), kRows), options(world, name, set));
          },
          [=](const Context& world, const std::string& name, ProcessSet set) {
            const BroadcastOptions chosen = options(world, name, set);
            Values values(kRows, static_cast<float>(world.rank()));
            broadcast(world, view(values.data(), kRows), chosen);
            EXPECT_EQ(values, Values(kRows, static_cast<float>(chosen.root)));
          }};
}

Family barrier_family() {
  return {"barrier",
          [](const Context& world, Values&, const std::string& name, ProcessSet set) {
            return barrier_async(world, {.name = name, .process_set = set});
          },
          [](const Context& world, const std::string& name, ProcessSet set) {
            barrier(world, {.name = name, .process_set = set});
          }};
}

Family allgather_family() {
  return {"allgather",
          [](const Context& world, Values& values, const std::string& name, ProcessSet set) {
            return allgather_async(world, view(values.data(), kRows),
                                   {.name = name, .process_set = set});
          },
          [](const Context& world, const std::string& name, ProcessSet set) {
            Values values = ones();
            expect_all(
                allgather(world, view(values.data(), kRows), {.name = name, .process_set = set}),
                kRows * size_of(world, set), 1.0F);
          }};
}

Family alltoall_family() {
  return {"alltoall",
          [](const Context& world, Values& values, const std::string& name, ProcessSet set) {
            return alltoall_async(world, view(values.data(), kRows),
                                  {.name = name, .process_set = set});
          },
          [](const Context& world, const std::string& name, ProcessSet set) {
            Values values = ones();
            expect_all(
                alltoall(world, view(values.data(), kRows), {.name = name, .process_set = set}),
                kRows, 1.0F);
          }};
}

Family reduce_scatter_family() {
  const auto options = [](const std::string& name, ProcessSet set) {
    return ReduceScatterOptions{.name = name, .op = ReduceOp::sum, .process_set = set};
  };
  return {"reduce_scatter",
          [=](const Context& world, Values& values, const std::string& name, ProcessSet set) {
            return reduce_scatter_async(world, view(values.data(), kRows), options(name, set));
          },
          [=](const Context& world, const std::string& name, ProcessSet set) {
            Values values = ones();
            const Result result =
                reduce_scatter(world, view(values.data(), kRows), options(name, set));
            const int size = size_of(world, set);
            expect_all(result, kRows / size, static_cast<float>(size));
          }};
}

}  // namespace

void wait(AnyHandle& handle) {
  std::visit([](auto& one) { (void)one.wait(); }, handle);
}

const std::vector<Family>& families() {
  static const std::vector<Family> all = {allreduce_family(), broadcast_family(),
                                          barrier_family(),   allgather_family(),
                                          alltoall_family(),  reduce_scatter_family()};
  return all;
}

}  // namespace hora::test
