#include <chrono>
#include <thread>

#include "tests/conformance/conformance.h"

namespace hora::internal::test {
namespace {

using Clock = std::chrono::steady_clock;  // one for all processes of a host

std::int64_t time_now() {
  return Clock::now().time_since_epoch().count();
}

class Barrier : public Conformance {
 protected:
  /// The last of `set` is late; no rank returns before it has called.
  void expect_waits(ProcessSet set) {
    for (const int late : ranks_of(context(), set)) {
      if (rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::int64_t last_came = time_now();
      barrier(world(), {.name = "b", .process_set = set});
      const std::int64_t left = time_now();
      allreduce(world(), placed(&last_came, 1),
                {.name = "came", .op = ReduceOp::max, .process_set = set});
      EXPECT_GE(left, last_came);
    }
  }
};

TEST_F(Barrier, NoRankLeavesBeforeTheLastOneOfTheSetComes) {
  for (const ProcessSet set : {kWorld, add_even_and_odd()}) expect_waits(set);
  barrier(world());
}

/// Ranks outside of the set wait elsewhere until those inside have returned.
TEST_F(Barrier, OfASetDoesNotWaitOutside) {
  const ProcessSet first_half = [&] {
    std::vector<int> ranks;
    for (int r = 0; r < (size() + 1) / 2; ++r) ranks.push_back(r);
    return add_process_set(world(), ranks);
  }();
  if (rank_in(context(), first_half) >= 0) {
    for (int round = 0; round < 3; ++round) barrier(world(), {.process_set = first_half});
  }
  meet();
}

TEST_F(Barrier, DoesNotDisturbWhatIsInFlight) {
  const ProcessSet set = add_even_and_odd();
  for (int round = 0; round < 10; ++round) {
    std::vector<std::int32_t> a(5000, 1), b(17, rank());
    Placed of_a = placed(a), of_b = placed(b);
    Handle first = allreduce_async(world(), of_a, {.name = "a", .op = ReduceOp::sum});
    Handle of_set = barrier_async(world(), {.name = "b", .process_set = set});
    if (rank() % 2 == 0) barrier(world(), {.name = "world"});
    Handle second = allreduce_async(world(), of_b, {.name = "c", .op = ReduceOp::max});
    if (rank() % 2 == 1) barrier(world(), {.name = "world"});
    of_set.wait();
    second.wait();
    first.wait();
    of_a.take_back();
    of_b.take_back();
    EXPECT_EQ(a, std::vector<std::int32_t>(5000, size()));
    EXPECT_EQ(b, std::vector<std::int32_t>(17, size() - 1));
  }
}

TEST_F(Barrier, AsyncIsReadyOnlyWhenTheLastOneHasCome) {
  Handle handle;
  if (rank() != 0) handle = barrier_async(world(), {.name = "b"});
  meet();
  if (rank() != 0) {
    EXPECT_FALSE(handle.ready()) << "rank 0 has not come";
  }
  meet();
  if (rank() == 0) handle = barrier_async(world(), {.name = "b"});
  handle.wait();
}

}  // namespace
}  // namespace hora::internal::test
