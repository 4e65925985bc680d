// A rank's context: what it says of the job and of the build, process sets that it begins with,
// memory of the node, and what is refused after shutdown(); hora on some of the application's
// ranks; the flight record of a rank, as its guard reads it; timelines of a real job; the bits of
// sums; and that nothing grows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/hora.h>
#include <hora/mpi.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "core/api/internals.h"
#include "core/flight/flight_recorder.h"
#include "tests/support/environment_variable.h"
#include "tests/support/expect_error.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/timeline.h"

namespace hora::internal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

int mpi_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

int mpi_size() {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

/// `init` is called so, and throws this.
void expect_init_error(ErrorCode code, const testing::Matcher<std::string>& text,
                       const InitOptions& options = {},
                       std::optional<MPI_Comm> communicator = std::nullopt) {
  expect_error(code, text, [&] {
    const Context context = communicator ? init(*communicator, options) : init(options);
  });
}

/// A sum over all ranks of this set of rank + 1.
void expect_sum(const Context& world, ProcessSet set) {
  std::int32_t value = world.rank() + 1;
  allreduce(world, view(&value, 1), {.name = "x", .op = ReduceOp::sum, .process_set = set});
  std::int32_t expected = 0;
  for (const int rank : ranks_of(world, set)) expected += rank + 1;
  EXPECT_EQ(value, expected) << "set " << set;
}

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
  EXPECT_EQ(world.is_homogeneous(),
            limit == 0 || world.size() % limit == 0 || world.size() < limit);
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
  expect_init_error(ErrorCode::invalid_argument,
                    AllOf(HasSubstr("HORA_CHUNK_SIZE is 2MiB"), HasSubstr("4MiB")),
                    {.settings = settings});
}

TEST(Facts, TheBuildSaysWhatIsInIt) {
  const BuildInfo info = build_info();
  EXPECT_THAT(std::string(version()), testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
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

std::vector<int> every_second(int first, int size) {
  std::vector<int> ranks;
  for (int rank = first; rank < size; rank += 2) ranks.push_back(rank);
  return ranks;
}

TEST(InitialSets, AreNumberedInTheirOrderAndWork) {
  const int size = mpi_size();
  std::vector<std::vector<int>> sets = {every_second(0, size), {size - 1, 0}};
  if (size == 1) sets.back() = {0};
  if (size > 1) sets.push_back(every_second(1, size));
  for (const bool engine_thread : {true, false}) {
    const Context world = init({.engine_thread = engine_thread, .process_sets = sets});
    EXPECT_EQ(ranks_of(world, ProcessSet(1)), sets.front());
    for (std::uint32_t number = 1; number <= sets.size(); ++number) {
      const ProcessSet set(number);
      if (rank_in(world, set) >= 0) expect_sum(world, set);
    }
    EXPECT_EQ(add_process_set(world, {0}).number(), sets.size() + 1)
        << "those of later come behind";
  }
}

TEST(InitialSets, ThatDoNotExistOrDifferAreTheSameErrorEverywhere) {
  using Sets = std::vector<std::vector<int>>;
  const auto expect_refused = [](const Sets& sets, ErrorCode code, const std::string& text) {
    expect_init_error(code, HasSubstr(text), {.process_sets = sets});
    const Context world = init();
    expect_sum(world, kWorld);
  };
  const int size = mpi_size();
  expect_refused({{0}, {}}, ErrorCode::invalid_argument, "at least one rank");
  expect_refused({{0, size}}, ErrorCode::invalid_argument, "does not exist");
  expect_refused({{0, 0}}, ErrorCode::invalid_argument, "twice");
  if (size == 1) return;  // no rank to differ from
  Sets sets = {{0, 1}};
  if (mpi_rank() == size - 1) sets.push_back({0});  // the others would wait for ever
  expect_refused(sets, ErrorCode::mismatch, "rank " + std::to_string(size - 1) + " has [0 1] [0]");
}

TEST(PeerMemory, AddressesAreThoseOfTheRanksOfANode) {
  const Context world = init();
  const Buffer buffer(world, 4096);
  *buffer.data() = static_cast<std::byte>(world.rank());
  ProcessSet own = kWorld;
  for (int node = 0; node < world.cross_size(); ++node) {
    const ProcessSet set = add_process_set(world, world.ranks_of_node(node));
    if (node == world.cross_rank()) own = set;
  }
  EXPECT_EQ(share_memory(world, kWorld), world.cross_size() == 1);
  const auto addresses = peer_addresses(world, own, "places", buffer.data(), buffer.size());
  std::vector<int> seen;
  for (const std::byte* const address : addresses) seen.push_back(static_cast<int>(*address));
  EXPECT_EQ(seen, ranks_of(world, own));
  barrier(world);
}

class AfterShutdown : public testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(Engines, AfterShutdown, testing::Bool(), [](const auto& engine) {
  return std::string(engine.param ? "WithThread" : "Stepped");
});

/// Collectives of one tensor: tests/conformance/misuse.cpp.
TEST_P(AfterShutdown, WhatIsFinishedCanBeTakenQueriesWorkAndWhateverBeginsSomethingThrows) {
  Context world = init({.engine_thread = GetParam()});
  const ProcessSet set = add_process_set(world, {0});
  std::vector<float> values(static_cast<std::size_t>(world.size()), 1.0F);
  const TensorView tensor = view(values.data(), world.size());
  const std::vector<TensorView> group{tensor, tensor};
  Buffer buffer(world, 100);
  Handle waited = allreduce_async(world, tensor, {.name = "waited"});
  ResultHandle gathered = allgather_async(world, tensor, {.name = "gathered"});
  const Handle dropped = barrier_async(world);
  world.shutdown();
  world.shutdown();
  EXPECT_TRUE(world.is_shut_down());
  EXPECT_TRUE(waited.ready());
  waited.wait();
  EXPECT_EQ(values.back(), 1.0F);
  EXPECT_EQ(gathered.wait().shape(), Shape{world.size() * world.size()});
  buffer = Buffer();
  stop_timeline(world);
  EXPECT_TRUE(world.rank() < world.size() && world.local_rank() < world.local_size() &&
              world.cross_rank() < world.cross_size());
  EXPECT_EQ(ranks_of(world, set), std::vector{0});
  EXPECT_EQ(size_of(world, set), 1);
  EXPECT_EQ(rank_in(world, set), world.rank() == 0 ? 0 : -1);
  EXPECT_GT(world.statistics().operations, 0u);
  EXPECT_FALSE(world.settings().timeline.size() > 0);
  EXPECT_EQ(world.device().kind, DeviceKind::cpu);
  const std::map<std::string, std::function<void()>> calls = {
      {"progress", [&] { world.progress(); }},
      {"grouped_allreduce", [&] { grouped_allreduce(world, group); }},
      {"grouped_broadcast", [&] { grouped_broadcast(world, group); }},
      {"grouped_allgather", [&] { (void)grouped_allgather(world, group); }},
      {"grouped_alltoall", [&] { (void)grouped_alltoall(world, group); }},
      {"grouped_reduce_scatter", [&] { (void)grouped_reduce_scatter(world, group); }},
      {"join", [&] { join(world); }},
      {"broadcast_object", [&] { (void)broadcast_object(world, std::string("text")); }},
      {"allgather_object", [&] { (void)allgather_object(world, std::string("text")); }},
      {"add_process_set", [&] { add_process_set(world, {0}); }},
      {"remove_process_set", [&] { remove_process_set(world, set); }},
      {"Buffer", [&] { const Buffer another(world, 100); }},
      {"note_phase", [&] { note_phase(world, "unused"); }},
      {"start_timeline", [&] { start_timeline(world, "unused.%r.json"); }},
  };
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    expect_error(ErrorCode::shut_down, call);
  }
}

/// Collectives of hora, a process set's among them, on these ranks of MPI_COMM_WORLD.
void expect_works(const Context& context, const std::vector<int>& members) {
  ASSERT_EQ(context.size(), static_cast<int>(members.size()));
  ASSERT_EQ(members[static_cast<std::size_t>(context.rank())], mpi_rank());
  const ProcessSet last = add_process_set(context, {context.size() - 1});
  for (int round = 0; round < 3; ++round) {
    std::int32_t sum = mpi_rank();
    allreduce(context, view(&sum, 1), {.name = "sum", .op = ReduceOp::sum});
    EXPECT_EQ(sum, std::accumulate(members.begin(), members.end(), 0));
    std::int32_t root = mpi_rank();
    broadcast(context, view(&root, 1), {.name = "root", .root = context.size() - 1});
    EXPECT_EQ(root, members.back());
    if (rank_in(context, last) >= 0) expect_sum(context, last);
  }
}

TEST(Communicators, EvenAndOddRanksEachHaveAHoraOfTheirOwn) {
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, mpi_rank() % 2, mpi_rank(), &half);
  for (int round = 0; round < 2; ++round) {
    const Context context = init(half);
    expect_works(context, every_second(mpi_rank() % 2, mpi_size()));
  }
  int relation = MPI_UNEQUAL;
  MPI_Comm_compare(half, half, &relation);
  EXPECT_EQ(relation, MPI_IDENT) << "the application's own stays";
  MPI_Comm_free(&half);
}

TEST(Communicators, AListOfRanksLeavesTheOthersAlone) {
  for (int first = 0; first < mpi_size(); ++first) {
    std::vector<int> members(static_cast<std::size_t>(mpi_size() - first));
    std::iota(members.begin(), members.end(), first);
    if (mpi_rank() >= first) {
      const Context context = init({.ranks = members});
      expect_works(context, members);
    }
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST(Communicators, WhatIsNoneIsRefused) {
  const auto expect_refused = [](const InitOptions& options, const std::string& text,
                                 std::optional<MPI_Comm> communicator = std::nullopt) {
    expect_init_error(ErrorCode::invalid_argument, HasSubstr(text), options, communicator);
  };
  expect_refused({}, "MPI_COMM_NULL", MPI_COMM_NULL);
  expect_refused({.ranks = {0}}, "one of them", MPI_COMM_WORLD);
  expect_refused({.ranks = {0, mpi_size()}}, "must ascend");
  expect_refused({.ranks = {0, 0}}, "must ascend");
  expect_refused({.ranks = {mpi_rank() == 0 ? 1 : 0}}, mpi_size() == 1 ? "ascend" : "not in");
  const Context context = init();
  EXPECT_EQ(context.size(), mpi_size());
}

/// Only what is an MPI_Comm is taken for one: MPICH's is an int, Open MPI's a pointer.
template <class T>
concept Communicates = requires(T value) {
  init(value);
};
static_assert(Communicates<MPI_Comm>);
static_assert(!Communicates<short> && !Communicates<std::nullptr_t>);
static_assert(std::same_as<decltype(init({})), Context>, "no options at all");

/// Memory of a guard, which this process is itself.
class Guarded {
 public:
  FlightRecord record() const { return read_record(memory_.layout(), record_now()).value(); }
  /// Fails where there is none.
  RecordedCollective find(const std::string& name) const {
    for (const RecordedCollective& one : record().collectives) {
      if (one.name == name) return one;
    }
    ADD_FAILURE() << "nothing is recorded of " << name;
    return {};
  }

 private:
  RecordMemory memory_ = RecordMemory::create().value();
  EnvironmentVariable variable_{kRecordVariable, memory_.path()};
};

TEST(FlightRecord, TellsWhatTheRankIsAndDoes) {
  const Guarded guarded;
  Context world = init();
  note_phase(world, "epoch 1");
  std::vector<float> values(100, 1.0F);
  allreduce(world, view(values), {.name = "x"});
  FlightRecord record = guarded.record();
  EXPECT_EQ(std::tuple(record.state, record.rank, record.size, record.node, record.local_rank),
            std::tuple(RecordState::initialised, world.rank(), world.size(), world.cross_rank(),
                       world.local_rank()));
  EXPECT_EQ(std::tuple(record.hora_version, record.pid, record.phase),
            std::tuple(std::string(version()), ::getpid(), "epoch 1"));
  EXPECT_NE(record.host, "");
  EXPECT_EQ(guarded.find("x").outcome, RecordOutcome::done);
  world.shutdown();
  record = guarded.record();
  EXPECT_EQ(record.state, RecordState::shut_down);
  EXPECT_FALSE(record.cause);
}

TEST(FlightRecord, HasTheReasonWhyHoraDidNotStart) {
  const Guarded guarded;
  {
    const EnvironmentVariable setting("HORA_SPIN", "fast");
    expect_init_error(ErrorCode::invalid_setting, testing::_);
  }
  const FlightRecord record = guarded.record();
  EXPECT_EQ(record.state, RecordState::failed);
  ASSERT_TRUE(record.cause);
  EXPECT_THAT(record.cause->text, HasSubstr("HORA_SPIN=\"fast\""));
}

TEST(FlightRecord, RefusedInitsAndDisagreementsThatAProgramCatchesAreNoFailures) {
  const Guarded guarded;
  const Context world = init();
  expect_init_error(ErrorCode::invalid_use, testing::_);
  EXPECT_EQ(guarded.record().state, RecordState::initialised);
  if (world.size() == 1) return;  // one rank agrees with itself
  std::vector<float> values(static_cast<std::size_t>(1 + world.rank()), 1.0F);
  expect_error(ErrorCode::mismatch, [&] { allreduce(world, view(values), {.name = "odd"}); });
  EXPECT_EQ(guarded.record().state, RecordState::initialised);
  EXPECT_EQ(guarded.find("odd").outcome, RecordOutcome::failed);
}

/// Rank 0's, known to all; removed when all are done with it.
class SharedFolder {
 public:
  ~SharedFolder() { MPI_Barrier(MPI_COMM_WORLD); }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  const TemporaryFolder own_;
  const std::string path_ = broadcast_object(init(), own_.path().string());
};

/// A folder that one rank alone cannot write to is an error on all.
TEST(RecordDirectory, ThatOneRankCannotWriteToIsAnErrorOnAll) {
  const SharedFolder folder;
  if (mpi_rank() == 0) std::ofstream(folder.file("file")) << "";
  MPI_Barrier(MPI_COMM_WORLD);
  for (const auto& [variable, value, text] :
       {std::array{std::string("HORA_RECORD_DIRECTORY"), folder.file("file"),
                   std::string("is no folder")},
        std::array{std::string("HORA_TIMELINE"), folder.file("no/such/%r.json"),
                   folder.file("no/such/0.json")}}) {
    const EnvironmentVariable setting(variable.c_str(), value);
    expect_init_error(ErrorCode::invalid_setting, AllOf(HasSubstr(variable), HasSubstr(text)));
  }
}

void average(const Context& world, const std::string& name, int rounds) {
  std::vector<float> values(3000, 1.0F);
  for (int round = 0; round < rounds; ++round) {
    allreduce(world, view(values.data(), 3000), {.name = name});
  }
}

/// The ranks of a host share the steady clock: no run begins before every rank's submission.
TEST(Timeline, TheSettingGivesOneFileARankAndThoseOfAHostFitTogether) {
  const SharedFolder folder;
  constexpr std::size_t kRounds = 7;
  const EnvironmentVariable setting("HORA_TIMELINE", folder.file("t.json"));
  {
    const Context world = init();
    average(world, "x", kRounds);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  std::vector<double> last_submission(kRounds, 0.0), first_run(kRounds, 1e300);
  for (int rank = 0; rank < mpi_size(); ++rank) {  // each rank looks at all files
    const Timeline timeline(folder.file("t." + std::to_string(rank) + ".json"));
    EXPECT_EQ(timeline.pid(), rank);
    const auto& facts = timeline.metadata("hora_timeline");
    EXPECT_EQ(facts.at("rank"), rank);
    EXPECT_EQ(facts.at("size"), mpi_size());
    EXPECT_THAT(timeline.metadata("process_name").at("name").get<std::string>(),
                HasSubstr("rank " + std::to_string(rank)));
    const auto negotiations = timeline.spans("x", "negotiate");
    const auto runs = timeline.spans("x", "allreduce");
    ASSERT_THAT(negotiations, SizeIs(kRounds));
    ASSERT_THAT(runs, SizeIs(kRounds));
    for (std::size_t i = 0; i < kRounds; ++i) {
      last_submission[i] = std::max(last_submission[i], negotiations[i].begin);
      first_run[i] = std::min(first_run[i], runs[i].begin);
    }
  }
  for (std::size_t i = 0; i < kRounds; ++i) {
    EXPECT_LE(last_submission[i], first_run[i] + kTimelineRounding);
  }
}

TEST(Timeline, IsStartedAndStoppedOnOneRankAlone) {
  const TemporaryFolder folder;
  const Context world = init();
  const bool own = world.rank() == world.size() - 1;
  average(world, "before", 2);
  for (int round = 0; round < 3; ++round) {
    std::string file;
    if (own) file = start_timeline(world, folder.file("a.json"));
    average(world, "x", 4);
    if (!own) continue;
    stop_timeline(world);
    EXPECT_EQ(file, folder.file("a." + std::to_string(world.rank()) + ".json"));
    const Timeline timeline(file);
    EXPECT_THAT(timeline.spans("x", "allreduce"), SizeIs(4));
    EXPECT_THAT(timeline.spans("before"), SizeIs(0));
  }
  stop_timeline(world);  // nothing to stop
}

TEST(Timeline, MisuseIsAnErrorAndLeavesTheJobAsItWas) {
  const TemporaryFolder folder;
  Context world = init();
  const auto refuse = [&](ErrorCode code, const std::string& path) {
    expect_error(code, [&] { (void)start_timeline(world, path); });
  };
  for (const std::string& path : {std::string(), folder.file("%x"), folder.file("no/such/folder")})
    refuse(ErrorCode::invalid_argument, path);
  (void)start_timeline(world, folder.file("%r"));
  refuse(ErrorCode::invalid_use, folder.file("b"));
  average(world, "x", 2);
  world.shutdown();
  EXPECT_THAT(Timeline(folder.file(std::to_string(world.rank()))).spans("x", "allreduce"),
              SizeIs(2))
      << "shutdown() completes it";
}

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

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kFreedMemoryStays = true;
#else
constexpr bool kFreedMemoryStays = false;
#endif

std::int64_t entries_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

/// Descriptors, threads, mappings; KiB, without pages of files: code is mapped as it is first run.
/// The memory last, for the others take some as they are first looked at.
std::array<std::int64_t, 4> held() {
  std::ifstream maps("/proc/self/maps"), status("/proc/self/status");
  std::array<std::int64_t, 4> all = {entries_of("/proc/self/fd"), entries_of("/proc/self/task"),
                                     std::count(std::istreambuf_iterator<char>(maps), {}, '\n'), 0};
  std::int64_t kib = 0;
  for (std::string name; status >> name;) {
    if ((name == "RssAnon:" || name == "RssShmem:") && status >> kib) all[3] += kib;
  }
  return all;
}

/// Uses all that init() makes: the engine's thread, windows, a process set, communicators.
void use_hora(int round) {
  Context world = init();
  std::vector<int> all;
  for (int r = 0; r < world.size(); ++r) all.push_back(r);
  const ProcessSet set = add_process_set(world, all);
  std::vector<float> values(5000, 1.0F);
  for (const ProcessSet where : {kWorld, set}) {
    allreduce(world, view(values), {.name = "g", .op = ReduceOp::sum, .process_set = where});
    (void)allgather(world, view(values), {.name = "a", .process_set = where});
  }
  EXPECT_EQ(values.front(), static_cast<float>(world.size() * world.size()));
  if (round % 2 == 0) remove_process_set(world, set);
  if (round % 3 == 0) return;  // the destructor shuts down
  world.shutdown();
}

// hora is started and shut down a hundred times in one process, on one MPI.
TEST(ManyInits, NothingGrows) {
  constexpr int kBefore = 60, kRounds = 100;  // before: pools of MPI and of the allocator fill
  std::array<std::int64_t, 4> before{};
  for (int round = 0; round < kBefore + kRounds; ++round) {
    if (round == kBefore) before = held();
    use_hora(round);
  }
  const auto [descriptors, threads, mappings, memory] = held();
  EXPECT_EQ(descriptors, before[0]);
  EXPECT_EQ(threads, before[1]);
  if (kFreedMemoryStays) return;
  EXPECT_LE(mappings, before[2] + 2);
  EXPECT_LE(memory, before[3] + 128) << "KiB";
}

}  // namespace
}  // namespace hora::internal::test
