// Handles beside wait(): a time limit, streams, and the end of device work.
#include <chrono>
#include <thread>

#include "tests/conformance/conformance.h"

namespace hora::internal::test {
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
    Placed tensor = placed(sum);
    expect_time_limit(
        [&] { return allreduce_async(world(), tensor, {.name = "x", .op = ReduceOp::sum}); }, "x");
    tensor.take_back();
    EXPECT_EQ(sum, size());
    const std::int32_t own = rank();
    const Placed input = placed(own);
    expect_time_limit([&] { return allgather_async(world(), input, {.name = "y"}); }, "y");
    const std::vector<std::int32_t> ones(static_cast<std::size_t>(size()), 1);
    std::int32_t part = -1;
    const Placed whole = placed(ones), output = placed(part);
    expect_time_limit(
        [&] {
          return reduce_scatter_into_async(world(), whole, output,
                                           {.name = "z", .op = ReduceOp::sum});
        },
        "z");
    TensorView after = output;
    after.stream = whole.stream();  // which the result is ready on
    EXPECT_EQ(here().read<std::int32_t>(after).front(), size());
  }
}

TEST_F(Handles, AfterWaitForWaitThrowsTheError) {
  if (size() == 1) GTEST_SKIP() << "there is none to disagree with";
  std::vector<float> values(rank() == 0 ? 3 : 4);
  const Placed tensor = placed(values);
  Handle handle = allreduce_async(world(), tensor, {.name = "x"});
  EXPECT_TRUE(handle.wait_for(1min));
  expect_error(ErrorCode::mismatch, [&] { handle.wait(); });
}

TEST_F(Handles, ResultsCanBeWaitedForAsTensorsAre) {
  const std::int32_t own = rank();
  const Placed input = placed(own), another = placed(own);
  void* const stream = another.stream();
  ResultHandle handle;
  for (int round = 0; round < 20; ++round) {
    handle = allgather_async(world(), input, {.name = "x"});
    const Result there = handle.synchronize();
    EXPECT_FALSE(handle.valid());
    TensorView view = there.view();
    view.stream = stream;  // which nothing orders
    EXPECT_EQ(here().read<std::int32_t>(view).back(), size() - 1);
  }
  handle = allgather_async(world(), input, {.name = "x"});
  const Result result = handle.wait(stream);
  EXPECT_EQ(result.view().stream, stream);
  EXPECT_EQ(elements_of<std::int32_t>(result).back(), size() - 1);
  expect_error(ErrorCode::invalid_use, [&] { (void)handle.synchronize(); });
}

}  // namespace
}  // namespace hora::internal::test
