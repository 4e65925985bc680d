// What handles offer beside wait(): a time limit, streams, and the end of device work.
#include <chrono>
#include <thread>

#include "tests/conformance/conformance.h"

namespace hora::test {
namespace {

using namespace std::chrono_literals;

class Handles : public Conformance {
 protected:
  /// Rank 0 submits what the others wait for, when all have seen that it has not.
  template <class Submit>
  void expect_time_limit(Submit&& submit, const std::string& name) {
    if (rank() == 0 && size() > 1) {
      barrier(world(), {.name = name + " seen"});
      auto handle = submit();
      EXPECT_TRUE(handle.wait_for(1min));
      handle.wait();
      return;
    }
    auto handle = submit();
    if (size() > 1) {
      EXPECT_FALSE(handle.wait_for(0s));
      const auto begin = std::chrono::steady_clock::now();
      EXPECT_FALSE(handle.wait_for(20ms));
      EXPECT_GE(std::chrono::steady_clock::now() - begin, 20ms);
      EXPECT_TRUE(handle.valid());
      EXPECT_FALSE(handle.ready());
      barrier(world(), {.name = name + " seen"});
    }
    EXPECT_TRUE(handle.wait_for(1min));
    EXPECT_TRUE(handle.valid()) << "wait() is still to be called";
    EXPECT_TRUE(handle.ready());
    handle.wait();
    EXPECT_FALSE(handle.valid());
    EXPECT_TRUE(handle.wait_for(0s)) << "as ready()";
  }
};

TEST_F(Handles, WaitForGivesUpInTimeAndWaitStillCollects) {
  for (int round = 0; round < 2; ++round) {  // new names, known names
    std::int32_t sum = 1;
    expect_time_limit(
        [&] { return allreduce_async(world(), view(sum), {.name = "x", .op = ReduceOp::sum}); },
        "x");
    EXPECT_EQ(sum, size());
    const std::int32_t mine = rank();
    expect_time_limit([&] { return allgather_async(world(), view(mine), {.name = "y"}); }, "y");
  }
}

TEST_F(Handles, AfterWaitForWaitThrowsTheError) {
  if (size() == 1) GTEST_SKIP() << "there is none to disagree with";
  std::vector<float> values(rank() == 0 ? 3 : 4);
  Handle handle = allreduce_async(world(), view(values), {.name = "x"});
  EXPECT_TRUE(handle.wait_for(1min));
  expect_error(ErrorCode::mismatch, [&] { handle.wait(); });
}

TEST_F(Handles, ResultsCanBeWaitedForAsTensorsAre) {
  const std::int32_t mine = rank();
  ResultHandle handle = allgather_async(world(), view(mine), {.name = "x"});
  EXPECT_EQ(handle.synchronize().values<std::int32_t>().back(), size() - 1);
  EXPECT_FALSE(handle.valid());
  handle = allgather_async(world(), view(mine), {.name = "x"});
  EXPECT_EQ(handle.wait(nullptr).values<std::int32_t>().back(), size() - 1);
  expect_error(ErrorCode::invalid_use, [&] { (void)handle.synchronize(); });
}

TEST(HandlesWithoutAnEngineThread, WaitForMakesProgress) {
  const Context world = init({.engine_thread = false});
  std::int32_t sum = 1;
  Handle handle = allreduce_async(world, view(sum), {.name = "x", .op = ReduceOp::sum});
  while (!handle.wait_for(0s)) {
  }
  handle.wait();
  EXPECT_EQ(sum, world.size());
  barrier(world);
}

}  // namespace
}  // namespace hora::test
