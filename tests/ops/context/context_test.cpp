// A rank's context: what it says of the job and of the build, process sets that it begins with,
// memory that ranks of a node share, and what is refused after shutdown().
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/hora.h>
#include <mpi.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "core/api/internals.h"
#include "tests/support/environment_variable.h"
#include "tests/support/expect_error.h"
#include "tests/support/seed.h"

namespace hora::internal::test {
namespace {

using testing::HasSubstr;

TEST(Context, KnowsWhereThisRankStands) {
  const Context world = init();
  int members = 0;
  for (int node = 0; node < world.cross_size(); ++node) {
    members += static_cast<int>(world.ranks_of_node(node).size());
  }
  EXPECT_EQ(members, world.size());
  const auto& own = world.ranks_of_node(world.cross_rank());
  EXPECT_EQ(own.size(), static_cast<std::size_t>(world.local_size()));
  EXPECT_EQ(own[static_cast<std::size_t>(world.local_rank())], world.rank());
  EXPECT_THROW((void)world.ranks_of_node(world.cross_size()), Error);
  const char* given = std::getenv("HORA_RANKS_PER_NODE");
  EXPECT_EQ(world.settings().ranks_per_node, given == nullptr ? 0 : std::atoi(given));
  const int limit = world.settings().ranks_per_node;
  EXPECT_EQ(world.cross_size(), limit == 0 ? 1 : (world.size() + limit - 1) / limit);
}

/// Every rank submits and waits in an order of its own.
TEST(Orders, TenThousandRandomAndCrossedOnesFinishAndAreRight) {
  const Context world = init();
  std::mt19937_64 random(seed() * 1000 + static_cast<std::uint64_t>(world.rank()));
  constexpr std::size_t kTensors = 6;
  constexpr int kOrders = 10000;
  std::vector<std::vector<std::int32_t>> values(kTensors);
  std::vector<Handle> handles(kTensors);
  std::vector<std::size_t> order(kTensors);
  std::iota(order.begin(), order.end(), std::size_t{0});
  const int n = world.size();
  for (int round = 0; round < kOrders; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t t : order) {
      values[t].assign(1 + t * 50, (world.rank() + 1) * static_cast<int>(t + 1) + round);
      handles[t] = allreduce_async(
          world, view(values[t].data(), static_cast<std::int64_t>(values[t].size())),
          {.name = "t" + std::to_string(t), .op = ReduceOp::sum});
    }
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t t : order) {
      handles[t].wait();
      const int expected = n * (n + 1) / 2 * static_cast<int>(t + 1) + n * round;
      ASSERT_EQ(values[t].front(), expected) << "round " << round << " tensor " << t;
      ASSERT_EQ(values[t].back(), expected) << "round " << round << " tensor " << t;
    }
  }
}

TEST(Facts, AJobIsHomogeneousWhereNodesHaveAsManyRanks) {
  const Context world = init();
  const int on_a_node = world.settings().ranks_per_node;
  EXPECT_EQ(world.is_homogeneous(),
            on_a_node == 0 || world.size() % on_a_node == 0 || world.size() < on_a_node);
}

TEST(Facts, HoraIsInitializedFromInitToShutdown) {
  EXPECT_FALSE(is_initialized());
  Context world = init();
  EXPECT_TRUE(is_initialized());
  world.shutdown();
  EXPECT_FALSE(is_initialized());
  EXPECT_THROW((void)init({.process_sets = {{-1}}}), Error);
  EXPECT_FALSE(is_initialized());
}

TEST(Facts, MpiThreadsAreSupportedWhereMpiSaysSo) {
  const Context world = init();
  int level = MPI_THREAD_SINGLE;
  ASSERT_EQ(MPI_Query_thread(&level), MPI_SUCCESS);
  EXPECT_EQ(world.mpi_threads_supported(), level == MPI_THREAD_MULTIPLE);
}

TEST(Facts, SettingsGivenToInitAreInForceLikeTheEnvironments) {
  Settings settings;
  settings.fusion_threshold = std::size_t{3} << 20;
  const EnvironmentVariable environment("HORA_CHUNK_SIZE", "2MiB");
  {
    const Context world = init({.settings = settings});
    EXPECT_EQ(world.settings().fusion_threshold, std::size_t{3} << 20);
    EXPECT_EQ(world.settings().chunk_size, std::size_t{2} << 20);
  }
  settings.chunk_size = std::size_t{4} << 20;
  expect_error(ErrorCode::invalid_argument,
               testing::AllOf(HasSubstr("HORA_CHUNK_SIZE is 2MiB"), HasSubstr("4MiB")),
               [&] { const Context world = init({.settings = settings}); });
  const Context world = init();
  EXPECT_EQ(world.settings().chunk_size, std::size_t{2} << 20);
}

TEST(Facts, TheBuildSaysWhatIsInIt) {
  const BuildInfo info = build_info();
  EXPECT_THAT(info.version, testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_THAT(info.mpi,
              testing::AnyOf(testing::StartsWith("Open MPI"), testing::StartsWith("MPICH")));
  EXPECT_THAT(info.mpi, testing::Not(HasSubstr("\n")));
#ifdef HORA_WITH_CUDA
  EXPECT_THAT(info.cuda, testing::MatchesRegex("[0-9]+\\.[0-9]+"));
  EXPECT_THAT(info.nccl, testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
#else
  EXPECT_EQ(info.cuda, "");
  EXPECT_EQ(info.nccl, "");
#endif
}

using testing::AllOf;
using testing::HasSubstr;
int size_of_world() {
  const Context world = init();
  return world.size();
}

std::vector<int> every_second(int first, int size) {
  std::vector<int> ranks;
  for (int rank = first; rank < size; rank += 2) ranks.push_back(rank);
  return ranks;
}

TEST(InitialSets, AreNumberedInTheirOrderAndWork) {
  const int size = size_of_world();
  std::vector<std::vector<int>> sets = {every_second(0, size), {size - 1, 0}};
  if (size == 1) sets.back() = {0};
  if (size > 1) sets.push_back(every_second(1, size));
  for (const bool engine_thread : {true, false}) {
    const Context world = init({.engine_thread = engine_thread, .process_sets = sets});
    EXPECT_EQ(ranks_of(world, ProcessSet(1)), sets.front());
    for (std::uint32_t number = 1; number <= sets.size(); ++number) {
      const ProcessSet set(number);
      if (rank_in(world, set) < 0) continue;
      std::int32_t value = world.rank() + 1;
      allreduce(world, view(&value, 1), {.name = "x", .op = ReduceOp::sum, .process_set = set});
      std::int32_t expected = 0;
      for (const int rank : ranks_of(world, set)) expected += rank + 1;
      EXPECT_EQ(value, expected) << "set " << set;
    }
    EXPECT_EQ(add_process_set(world, {0}).number(), sets.size() + 1)
        << "those of later come behind";
  }
}

/// Starts hora with these sets, which is the same error on every rank, and then without.
void expect_refused(const std::vector<std::vector<int>>& sets, ErrorCode code,
                    const std::string& text) {
  expect_error(code, HasSubstr(text), [&] { const Context world = init({.process_sets = sets}); });
  const Context world = init();
  std::int32_t one = 1;
  allreduce(world, view(&one, 1), {.name = "next", .op = ReduceOp::sum});
  EXPECT_EQ(one, world.size());
}

TEST(InitialSets, ThatDoNotExistAreAnErrorEverywhere) {
  const int size = size_of_world();
  expect_refused({{0}, {}}, ErrorCode::invalid_argument, "at least one rank");
  expect_refused({{0, size}}, ErrorCode::invalid_argument, "does not exist");
  expect_refused({{0, 0}}, ErrorCode::invalid_argument, "twice");
}

TEST(InitialSets, ThatDifferAreTheSameErrorEverywhere) {
  int size = 0;
  int rank = 0;
  {
    const Context world = init();
    size = world.size();
    rank = world.rank();
  }
  if (size == 1) return;  // no rank to differ from
  std::vector<std::vector<int>> sets = {{0, 1}};
  if (rank == size - 1) sets.push_back({0});  // more of them: the others would wait for ever
  const std::string last = std::to_string(size - 1);
  expect_refused(sets, ErrorCode::mismatch, "rank " + last + " has [0 1] [0]");
}

/// A rank's location, as the others see it.
std::vector<Location> exchange(const Context& world, Location own) {
  const std::vector<std::int64_t> mine{own.window, static_cast<std::int64_t>(own.offset)};
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(world.size()));
  allgather_into(world, view(mine), view(all), {.name = "locations"});
  std::vector<Location> locations;
  for (std::size_t i = 0; i < all.size(); i += 2) {
    locations.push_back({.window = static_cast<std::uint32_t>(all[i]),
                         .offset = static_cast<std::uint64_t>(all[i + 1])});
  }
  return locations;
}

TEST(PeerMemory, RanksOfANodeReadEachOthersBuffersAlsoOfNewWindows) {
  const Context world = init();
  std::vector<Buffer> buffers;
  for (const std::size_t bytes : {std::size_t{4096}, std::size_t{100} << 20}) {
    // Ranks may have them in other windows.
    if (world.rank() % 2 == 0) buffers.emplace_back(world, std::size_t{200} << 20);
    const Buffer& own = buffers.emplace_back(world, bytes);
    std::byte* const last = own.data() + bytes - sizeof(int);
    const int rank = world.rank();
    std::memcpy(last, &rank, sizeof(rank));
    const auto location = location_of(world, last, sizeof(int));
    ASSERT_TRUE(location.has_value());
    const auto locations = exchange(world, *location);
    for (const int peer : world.ranks_of_node(world.cross_rank())) {
      int seen = -1;
      std::memcpy(&seen,
                  peer_address(world, peer, locations[static_cast<std::size_t>(peer)], sizeof(int)),
                  sizeof(seen));
      EXPECT_EQ(seen, peer);
    }
    barrier(world);
  }
}

TEST(PeerMemory, WhatIsNotSharedHasNoLocation) {
  const Context world = init();
  const std::vector<std::byte> own(100);
  EXPECT_FALSE(location_of(world, own.data(), own.size()).has_value());
}

TEST(PeerMemory, WhatAPeerDoesNotHaveIsRefused) {
  const Context world = init();
  const auto& node = world.ranks_of_node(world.cross_rank());
  const int peer = world.rank() == node.back() ? node.front() : node.back();
  const auto refused = [&](Location location, std::size_t bytes) {
    try {
      peer_address(world, peer, location, bytes);
    } catch (const Error& error) {
      return error.code() == ErrorCode::transport;
    }
    return false;
  };
  const Location first{.window = 0, .offset = 8192};
  EXPECT_FALSE(refused(first, 1));
  EXPECT_TRUE(refused(first, std::size_t{1} << 47));
  EXPECT_TRUE(refused({.window = 0, .offset = std::uint64_t{1} << 47}, 1));
  if (peer != world.rank()) {
    EXPECT_TRUE(refused({.window = 60, .offset = 8192}, 1));
  }
  EXPECT_TRUE(refused(kNowhere, 1));
  barrier(world);
}

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
    expect_error(ErrorCode::shut_down, call);
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
}  // namespace hora::internal::test
