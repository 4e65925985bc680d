// Every public call after shutdown(): what would begin something throws, the rest works on.
#include <gtest/gtest.h>
#include <hora/hora.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/expect_error.h"

namespace hora::internal {
namespace {

class AfterShutdown : public testing::TestWithParam<bool> {
 protected:
  static InitOptions options() {
    InitOptions options;
    options.engine_thread = GetParam();
    return options;
  }
};
INSTANTIATE_TEST_SUITE_P(Engines, AfterShutdown, testing::Bool(), [](const auto& engine) {
  return std::string(engine.param ? "WithThread" : "Stepped");
});

TEST_P(AfterShutdown, WhateverBeginsSomethingThrows) {
  Context world = init(options());
  const ProcessSet set = add_process_set(world, {0});
  std::vector<float> values(static_cast<std::size_t>(world.size()), 1.0F);
  const TensorView tensor = view(values.data(), world.size());
  const std::vector<TensorView> group{tensor, tensor};
  allreduce(world, tensor);
  world.shutdown();
  const std::map<std::string, std::function<void()>> calls = {
      {"progress", [&] { world.progress(); }},
      {"allreduce", [&] { allreduce(world, tensor); }},
      {"allreduce_async", [&] { (void)allreduce_async(world, tensor); }},
      {"broadcast", [&] { broadcast(world, tensor); }},
      {"broadcast_async", [&] { (void)broadcast_async(world, tensor); }},
      {"allgather", [&] { (void)allgather(world, tensor); }},
      {"allgather_async", [&] { (void)allgather_async(world, tensor); }},
      {"alltoall", [&] { (void)alltoall(world, tensor); }},
      {"alltoall_async", [&] { (void)alltoall_async(world, tensor); }},
      {"reduce_scatter", [&] { (void)reduce_scatter(world, tensor); }},
      {"reduce_scatter_async", [&] { (void)reduce_scatter_async(world, tensor); }},
      {"grouped_allreduce", [&] { grouped_allreduce(world, group); }},
      {"grouped_broadcast", [&] { grouped_broadcast(world, group); }},
      {"grouped_allgather", [&] { (void)grouped_allgather(world, group); }},
      {"grouped_alltoall", [&] { (void)grouped_alltoall(world, group); }},
      {"grouped_reduce_scatter", [&] { (void)grouped_reduce_scatter(world, group); }},
      {"barrier", [&] { barrier(world); }},
      {"barrier_async", [&] { (void)barrier_async(world); }},
      {"join", [&] { join(world); }},
      {"broadcast_object", [&] { (void)broadcast_object(world, std::string("text")); }},
      {"allgather_object", [&] { (void)allgather_object(world, std::string("text")); }},
      {"add_process_set", [&] { add_process_set(world, {0}); }},
      {"remove_process_set", [&] { remove_process_set(world, set); }},
      {"Buffer", [&] { const Buffer buffer(world, 100); }},
      {"note_phase", [&] { note_phase(world, "unused"); }},
      {"start_timeline", [&] { start_timeline(world, "unused.%r.json"); }},
  };
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    test::expect_error(ErrorCode::shut_down, call);
  }
}

TEST_P(AfterShutdown, WhatIsFinishedCanBeTakenAndQueriesWork) {
  Context world = init(options());
  const ProcessSet set = add_process_set(world, {0});
  std::vector<float> values(100, 1.0F);
  Buffer buffer(world, 100);
  Handle waited = allreduce_async(world, view(values.data(), 100), {.name = "waited"});
  ResultHandle gathered = allgather_async(world, view(values.data(), 100), {.name = "gathered"});
  const Handle dropped = barrier_async(world);
  world.shutdown();
  world.shutdown();
  EXPECT_TRUE(world.is_shut_down());
  EXPECT_TRUE(waited.ready());
  waited.wait();
  EXPECT_EQ(values[99], 1.0F);
  EXPECT_EQ(gathered.wait().shape(), Shape{100 * world.size()});
  buffer = Buffer();
  stop_timeline(world);
  EXPECT_LT(world.rank(), world.size());
  EXPECT_LT(world.local_rank(), world.local_size());
  EXPECT_LT(world.cross_rank(), world.cross_size());
  EXPECT_EQ(ranks_of(world, set), std::vector{0});
  EXPECT_EQ(size_of(world, set), 1);
  EXPECT_EQ(rank_in(world, set), world.rank() == 0 ? 0 : -1);
  EXPECT_GT(world.statistics().operations, 0u);
  EXPECT_FALSE(world.settings().timeline.size() > 0);
  EXPECT_EQ(world.device().kind, DeviceKind::cpu);
}

}  // namespace
}  // namespace hora::internal
