#include "core/launch/command/cores.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "tests/support/seed.h"

namespace hora::launch {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Numbered as Linux does it: first one hyperthread of each core, then the second ones.
GrantedCores machine(int numas, int cores_each, int hyperthreads = 1) {
  GrantedCores granted;
  const int cores = numas * cores_each;
  for (int cpu = 0; cpu < cores * hyperthreads; ++cpu) {
    granted.cpus.push_back({cpu, cpu % cores, cpu % cores / cores_each});
  }
  return granted;
}

CoreShare share(const GrantedCores& granted, int rank, int ranks,
                Binding binding = Binding::automatic) {
  return share_of_cores(granted, rank, ranks, binding, ranks);
}

TEST(ShareOfCores, IsAnEqualPieceWithItsHyperthreads) {
  using enum Binding;
  const auto limited = [](double limit) {
    GrantedCores granted = machine(1, 8);
    granted.limit = limit;
    return granted;
  };
  struct Case {
    GrantedCores granted;
    int rank;
    int ranks;
    Binding binding;
    CoreShare share;
  };
  for (const Case& each :
       std::vector<Case>{{machine(1, 2), 0, 2, automatic, {{0}, 1}},
                         {machine(1, 2), 1, 2, automatic, {{1}, 1}},
                         {machine(1, 4, 2), 1, 2, automatic, {{2, 3, 6, 7}, 2}},
                         {machine(2, 2), 1, 2, automatic, {{2, 3}, 2}},
                         {machine(1, 4), 0, 1, automatic, {{0, 1, 2, 3}, 4}},
                         {machine(1, 2), 2, 3, automatic, {{}, 1, true}},  // more ranks than cores
                         {machine(1, 2, 2), 0, 4, automatic, {{}, 1, true}},
                         {machine(1, 2), 2, 3, cores, {{1}, 1, true}},
                         {limited(4.5), 0, 2, automatic, {{}, 2}},
                         {limited(0.5), 0, 1, automatic, {{}, 1}},
                         {limited(0.5), 0, 2, automatic, {{}, 1, true}},
                         {limited(8), 0, 2, automatic, {{0, 1, 2, 3}, 4}},
                         {machine(2, 4), 1, 4, none, {{}, 2}},
                         {machine(2, 4), 1, 4, numa, {{0, 1, 2, 3}, 2}},
                         {machine(2, 4), 3, 4, numa, {{4, 5, 6, 7}, 2}},
                         {{}, 0, 2, automatic, {{}, 1}}}) {
    EXPECT_EQ(share(each.granted, each.rank, each.ranks, each.binding), each.share)
        << describe_cores(each.granted, each.ranks, each.binding, each.ranks, "");
  }
}

TEST(ShareOfCores, LeavesOneToTheEngineWhereThatIsAnEighthAtMost) {
  EXPECT_EQ(share(machine(1, 16), 0, 1).threads, 16);
  EXPECT_EQ(share(machine(1, 16), 0, 2).threads, 7);
  EXPECT_EQ(share(machine(1, 14), 0, 2).threads, 7);
  EXPECT_EQ(share(machine(1, 16, 2), 0, 2).threads, 8) << "the engine has hyperthreads";
  EXPECT_EQ(share(machine(1, 17), 0, 2).threads, 8) << "the engine has what is left over";
  EXPECT_EQ(share_of_cores(machine(1, 8), 0, 1, Binding::automatic, 2).threads, 7);
}

TEST(ShareOfCores, UsesWhatTheMaskLeaves) {
  GrantedCores granted;
  granted.cpus = {{5, 1, 0}, {13, 5, 1}, {1, 1, 0}, {12, 4, 1}};
  EXPECT_EQ(share(granted, 0, 2), (CoreShare{{1, 5}, 1}));
  EXPECT_EQ(share(granted, 1, 2), (CoreShare{{12, 13}, 1 + 0}));
}

/// On random machines: pieces are disjoint, hold every core, and no rank has more threads than
/// cores.
TEST(ShareOfCores, GivesEachCoreToOneRankAndEachThreadACore) {
  auto random = internal::test::generator();
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  for (int round = 0; round < 500; ++round) {
    GrantedCores granted = machine(draw(1, 4), draw(1, 16), draw(1, 2));
    std::ranges::shuffle(granted.cpus, random);
    granted.cpus.resize(static_cast<std::size_t>(draw(1, static_cast<int>(granted.cpus.size()))));
    std::map<int, int> core_of;
    std::set<int> cores;
    for (const LogicalCpu& cpu : granted.cpus) {
      core_of[cpu.cpu] = cpu.core;
      cores.insert(cpu.core);
    }
    const int ranks = draw(1, static_cast<int>(cores.size()));
    std::set<int> given;
    std::size_t cpus = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const CoreShare piece = share(granted, rank, ranks);
      std::set<int> own;
      for (const int cpu : piece.cpus) own.insert(core_of.at(cpu));
      EXPECT_LE(piece.threads, static_cast<int>(own.size()));
      EXPECT_GE(piece.threads, 1);
      EXPECT_LE(own.size(), cores.size() / static_cast<std::size_t>(ranks) + 1);
      for (const int core : own) EXPECT_TRUE(given.insert(core).second);
      cpus += piece.cpus.size();
    }
    EXPECT_EQ(given, cores);
    EXPECT_EQ(cpus, granted.cpus.size());
  }
}

TEST(DescribeCores, InOneLine) {
  GrantedCores limited = machine(1, 8);
  limited.limit = 4;
  limited.limited_by = "the cgroup's quota";
  using enum Binding;
  for (const auto& [text, granted, ranks, binding] :
       std::vector<std::tuple<const char*, GrantedCores, int, Binding>>{
           {"2 ranks on 8 cores (16 hyperthreads), bound to 4 cores each, 4 threads each",
            machine(1, 8, 2), 2, automatic},
           {"1 rank on 1 core, bound to 1 core, 1 thread", machine(1, 1), 1, automatic},
           {"4 ranks on 2 cores, not bound, 1 thread each", machine(1, 2), 4, automatic},
           {"3 ranks on 8 cores, bound to 2 to 3 cores each, 2 threads each", machine(1, 8), 3,
            automatic},
           {"4 ranks on 8 cores, bound to 4 cores each, 2 threads each", machine(2, 4), 4, numa},
           {"2 ranks on 4 cores, not bound, 2 threads each", machine(1, 4), 2, none},
           {"2 ranks on 8 cores with the time of 4 (the cgroup's quota), not bound, 2 threads each",
            limited, 2, automatic}}) {
    EXPECT_EQ(describe_cores(granted, ranks, binding, ranks, ""), text);
  }
  EXPECT_EQ(describe_cores(machine(1, 8), 2, automatic, 2, "3"),
            "2 ranks on 8 cores, bound to 4 cores each, OMP_NUM_THREADS=3");
}

TEST(Binding, HasNames) {
  for (const Binding binding : {Binding::automatic, Binding::none, Binding::cores, Binding::numa}) {
    EXPECT_EQ(parse_binding(name_of(binding)), binding);
  }
  EXPECT_EQ(parse_binding("socket"), std::nullopt);
}

TEST(RankVariables, SayThreadsAndWhetherWaitingRanksYield) {
  EXPECT_THAT(rank_variables({{}, 3}), ElementsAre(Variable{"OMP_NUM_THREADS", "3"}));
  EXPECT_THAT(
      rank_variables({{}, 1, true}),
      ElementsAre(Variable{"OMP_NUM_THREADS", "1"}, Variable{"OMPI_MCA_mpi_yield_when_idle", "1"}));
}

TEST(GrantedCores, OfThisMachine) {
  const GrantedCores granted = granted_cores();
  EXPECT_FALSE(granted.cpus.empty());
  const CoreShare all = share_of_cores(granted, 0, 1, Binding::cores, 1);
  EXPECT_EQ(all.cpus.size(), granted.cpus.size());
  EXPECT_GE(all.threads, 1);
}

using Files = std::map<std::string, std::string>;

FileReader reader_of(const Files& files) {
  return [&files](const std::string& path) -> std::optional<std::string> {
    const auto found = files.find(path);
    return found == files.end() ? std::nullopt : std::optional(found->second);
  };
}

double limit_of(const Files& files) {
  return cgroup_cpu_limit(reader_of(files));
}

TEST(CgroupLimit, IsTheLeastUpToTheRoot) {
  Files files = {{"/proc/self/cgroup", "0::/a/b/c\n"},
                 {"/sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n"},
                 {"/sys/fs/cgroup/a/b/cpu.max", "250000 100000\n"},
                 {"/sys/fs/cgroup/a/cpu.max", "400000 100000\n"}};
  EXPECT_EQ(limit_of(files), 2.5);
  files["/sys/fs/cgroup/cpu.max"] = "50000 100000\n";
  EXPECT_EQ(limit_of(files), 0.5);
  EXPECT_EQ(limit_of({{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", "1 2"}}), 0.5);
}

TEST(CgroupLimit, IsNoneOfOddFiles) {
  EXPECT_EQ(limit_of({}), 0);
  for (const char* const text : {"", "\n", ":::", "0::", "x", "0::a", "0::////"}) {
    EXPECT_EQ(limit_of({{"/proc/self/cgroup", text}, {"/sys/fs/cgroup/cpu.max", "1"}}), 0) << text;
  }
  EXPECT_EQ(limit_of({{"/proc/self/cgroup", "0::/"}, {"/sys/fs/cgroup/cpu.max", "1 0"}}), 0);
}

std::uint64_t memory_of(const Files& files) {
  return available_memory(reader_of(files));
}

const std::string kMeminfo =
    "MemTotal:        2000 kB\nMemFree:          100 kB\nMemAvailable:    1000 kB\n";

TEST(AvailableMemory, IsTheHostsWithoutACgroup) {
  EXPECT_EQ(memory_of({{"/proc/meminfo", kMeminfo}}), 1024000U);
  EXPECT_EQ(memory_of({{"/proc/meminfo", "MemTotal: 1 kB\n"}}), 0U);
  EXPECT_EQ(memory_of({}), 0U);
}

TEST(AvailableMemory, IsTheLeastUpToTheRoot) {
  Files files = {{"/proc/meminfo", kMeminfo},
                 {"/proc/self/cgroup", "0::/a/b\n"},
                 {"/sys/fs/cgroup/a/b/memory.max", "max\n"},
                 {"/sys/fs/cgroup/a/b/memory.current", "70000\n"},
                 {"/sys/fs/cgroup/a/memory.max", "100000\n"},
                 {"/sys/fs/cgroup/a/memory.current", "90000\n"}};
  EXPECT_EQ(memory_of(files), 10000U);
  files["/sys/fs/cgroup/a/memory.stat"] = "anon 5\ninactive_file 20000\n";
  EXPECT_EQ(memory_of(files), 30000U) << "page cache gives way";
  files["/sys/fs/cgroup/a/memory.current"] = "200000";
  EXPECT_EQ(memory_of(files), 1U) << "used up, but known";
}

TEST(OomKills, AreThoseOfTheCgroupItself) {
  const auto kills = [](const Files& files) { return oom_kills(reader_of(files)); };
  EXPECT_EQ(kills({{"/proc/self/cgroup", "0::/a/b\n"},
                   {"/sys/fs/cgroup/a/b/memory.events", "low 0\noom 3\noom_kill 2\n"},
                   {"/sys/fs/cgroup/a/memory.events", "oom_kill 9\n"}}),
            2U);
  EXPECT_EQ(
      kills({{"/proc/self/cgroup", "0::/a/b\n"}, {"/sys/fs/cgroup/memory.events", "oom_kill 4"}}),
      4U)
      << "a container sees its own as the root";
  EXPECT_EQ(kills({}), 0U);
}

TEST(AvailableMemory, OfThisMachine) {
  EXPECT_GT(available_memory(read_small_file), 0U);
}

}  // namespace
}  // namespace hora::launch
