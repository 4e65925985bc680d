// A context without an engine's thread, whose handles make progress.
#include <gtest/gtest.h>
#include <hora/hora.h>

namespace hora::internal::test {
namespace {

using namespace std::chrono_literals;

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
}  // namespace hora::internal::test
