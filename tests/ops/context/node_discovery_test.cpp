#include "ops/context/node_discovery.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/process.h"
#include "tests/support/golden.h"
#include "tests/support/seed.h"
#include "tests/support/threads/thread_bootstrap.h"

namespace hora::internal {
namespace {

std::vector<int> processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  EXPECT_EQ(::sched_getaffinity(0, sizeof allowed, &allowed), 0);
  std::vector<int> result;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) result.push_back(cpu);
  }
  return result;
}

/// On a thread that may use these processors alone, on a machine that hwloc takes to be `machine`.
int memory_node(const std::string& machine, const std::vector<int>& processors) {
  int result = kNoMemoryNode - 1;
  std::jthread([&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const int cpu : processors) CPU_SET(cpu, &set);
    ASSERT_EQ(::sched_setaffinity(0, sizeof set, &set), 0);
    ::setenv("HWLOC_SYNTHETIC", machine.c_str(), 1);
    result = memory_node_of_process();
    ::unsetenv("HWLOC_SYNTHETIC");
  }).join();
  return result;
}

/// hwloc's text for so many memory nodes of so many processors.
std::string machine(int memory_nodes, int processors) {
  return "numa:" + std::to_string(memory_nodes) + " pu:" + std::to_string(processors);
}

TEST(MemoryNode, IsThatOfAllProcessors) {
  const std::vector<int> all = processors();
  const int last = all.back();
  for (const int cpu : all) {
    EXPECT_EQ(memory_node(machine(cpu + 1, 1), {cpu}), cpu);
    EXPECT_EQ(memory_node(machine(2, cpu + 1), {cpu}), 0);
  }
  EXPECT_EQ(memory_node(machine(2, last + 1), all), 0) << "all of one";
  if (last == 0) GTEST_SKIP() << "the rest needs a processor beside number 0";
  EXPECT_EQ(memory_node(machine(1, last), {last}), kNoMemoryNode) << "which the machine lacks";
  if (all.size() < 2) GTEST_SKIP() << "the rest needs two processors";
  EXPECT_EQ(memory_node(machine(last + 1, 1), all), kNoMemoryNode) << "of several";
}

constexpr const char* kContextTexts = "ops/context/texts.txt";

TEST(BindingAdvice, OnlyWhereAnotherCoreIsFree) {
  EXPECT_FALSE(binding_advice(2, 8, 2).has_value()) << "two cores a rank";
  EXPECT_FALSE(binding_advice(1, 2, 2).has_value()) << "no core is free";
  EXPECT_FALSE(binding_advice(1, 1, 4).has_value());
  test::expect_golden(kContextTexts, "binding advice", binding_advice(1, 8, 2).value_or(""));
}

// The second round of a training step takes its gradients from memory it has.
TEST(KeepLargeAllocations, MemoryIsNotGivenBack) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer brings an allocator of its own";
#endif
  if (!keep_large_allocations()) GTEST_SKIP() << "this C library keeps its own thresholds";
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  const auto use = [&] {
    const auto block = std::make_unique<char[]>(kBytes);
    std::memset(block.get(), 1, kBytes);
  };
  const auto page_faults = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<std::size_t>(usage.ru_minflt);
  };
  use();
  const std::size_t before = page_faults();
  for (int i = 0; i < 5; ++i) use();
  EXPECT_LT(page_faults() - before, kBytes / 4096) << "five times as many where it is given back";
}

using Assignments = std::vector<SettingAssignment>;

TEST(Disagreement, NamesTheFirstVariableThatDiffersAndBothValues) {
  std::string spin;
  for (const auto& setting : setting_descriptions()) {
    if (setting.variable == "HORA_SPIN") spin = setting.default_value;
  }
  const Assignments some = {{"HORA_FUSION_THRESHOLD", "1MiB"}, {"HORA_SPIN", "10us"}};
  const struct {
    Assignments own, of_rank_0;
  } cases[] = {
      {{}, {}},
      {some, some},
      {{}, some},  // mpirun forwards no variables to other hosts
      {{{"HORA_FUSION_THRESHOLD", "1048576"}}, {{"HORA_FUSION_THRESHOLD", "1MiB"}}},
      {{{"HORA_SPIN", spin}}, {}},
      {{{"HORA_FUSION_THRESHOLD", "2097152"}}, {{"HORA_FUSION_THRESHOLD", "1MiB"}}},
      {{{"HORA_CROSS_ALGORITHM", "ring"}}, {}},
      {{{"HORA_SPIN", "10us"}, {"HORA_LOG_LEVEL", "debug"}}, {{"HORA_SPIN", "10us"}}},
  };
  std::string texts;
  for (const auto& [own, of_rank_0] : cases) texts += disagreement(own, 3, of_rank_0) + "\n";
  test::expect_golden(kContextTexts, "disagreements", texts);
}

/// Each of these ranks, with assignments of its own: its settings, or its error.
std::vector<std::string> agreed(const std::vector<Assignments>& by_rank) {
  std::vector<std::string> results(by_rank.size());
  test::run_ranks(std::vector<int>(by_rank.size(), 0), [&](Bootstrap& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    try {
      const Settings settings = agree_on_settings(world, {.assignments = by_rank[rank]});
      results[rank] = std::to_string(settings.fusion_threshold);
    } catch (const Error& error) {
      results[rank] = std::to_string(error.rank()) + ": " + error.what();
      EXPECT_EQ(error.code(), ErrorCode::invalid_setting);
    }
  });
  return results;
}

TEST(AgreeOnSettings, WhatDiffersOrIsWrongIsTheSameErrorOnEveryRank) {
  const Assignments some = {{"HORA_FUSION_THRESHOLD", "1MiB"}};
  const Assignments other = {{"HORA_FUSION_THRESHOLD", "2MiB"}};
  const auto differ = agreed({some, {}, other, other});
  EXPECT_THAT(differ, testing::Each(differ[0]));
  const auto wrong = agreed({{}, {{"HORA_FUSION_THRESHOLD", "much"}}, {}});
  EXPECT_THAT(wrong, testing::Each(wrong[0]));
  test::expect_golden(kContextTexts, "agreement", differ[0] + "\n" + wrong[0]);
}

TEST(SettingsOfProcess, WhatTheProgramGivesCountsAsTheEnvironmentDoes) {
  Settings given;
  given.fusion_threshold = std::size_t{1} << 20;
  given.spin = std::chrono::microseconds(50);  // the default, which is not set
  const SettingAssignment threshold{"HORA_FUSION_THRESHOLD", "1MiB"};
  const SettingAssignment spin{"HORA_SPIN", "10us"};
  const auto settings = settings_of_process({spin}, given);
  EXPECT_EQ(settings.assignments, (Assignments{spin, threshold}));
  EXPECT_EQ(settings.wrong + settings.conflict, "");
  const auto alike = settings_of_process({{"HORA_FUSION_THRESHOLD", "1048576"}}, given);
  EXPECT_EQ(alike.assignments.size(), 1U);
  EXPECT_EQ(alike.wrong + alike.conflict, "");
  Settings negative, unknown;
  negative.ranks_per_node = -1;
  unknown.log_level = static_cast<LogLevel>(200);
  test::expect_golden(kContextTexts, "settings of the program",
                      settings_of_process({{"HORA_FUSION_THRESHOLD", "2097152"}}, given).conflict +
                          "\n" + settings_of_process({}, negative).wrong + "\n" +
                          settings_of_process({}, unknown).wrong);
}

TEST(SeparationText, NamesTheGroupsAndTheReason) {
  EXPECT_EQ(separation_text({0, 0, 0}, {4, 5, 6}, {"", "", ""}), "");
  test::expect_golden(kContextTexts, "separate nodes",
                      separation_text({0, 0, 2, 0}, {4, 5, 6, 7}, {"", "", "no such process", ""}));
}

TEST(GroupByReach, GroupsOfRandomReachAreMutualAndGreedy) {
  auto random = test::generator();
  for (int round = 0; round < 500; ++round) {
    const std::size_t count = 1 + random() % 9;
    std::vector<std::vector<bool>> reach(count, std::vector<bool>(count, true));
    for (auto& row : reach) {
      for (std::size_t j = 0; j < count; ++j) row[j] = random() % 4 != 0;
    }
    const auto group = group_by_reach(reach);
    ASSERT_EQ(group.size(), count);
    // Whether all earlier members of this group share memory with i.
    const auto fits = [&](std::size_t i, std::size_t into) {
      for (std::size_t j = 0; j < i; ++j) {
        if (group[j] == static_cast<int>(into) && !(reach[i][j] && reach[j][i])) return false;
      }
      return true;
    };
    for (std::size_t i = 0; i < count; ++i) {
      const auto first = static_cast<std::size_t>(group[i]);
      ASSERT_LE(first, i);
      ASSERT_EQ(group[first], group[i]) << "named after its first member";
      ASSERT_TRUE(fits(i, first)) << i << " shares no memory with all of " << first;
      for (std::size_t other = 0; other < first; ++other) {
        ASSERT_FALSE(group[other] == static_cast<int>(other) && fits(i, other))
            << i << " would fit into group " << other;
      }
    }
  }
}

using Ranks = std::vector<std::vector<int>>;

TEST(DiscoverNodes, RanksOfAHostAreANodeAndMapEachOtherOrAreCutIntoVirtualNodes) {
  test::run_ranks({7, 3, 7, 7, 3}, [](Bootstrap& world) {
    const NodeDiscovery node = discover_nodes(world, 0);
    EXPECT_EQ(node.topology.ranks_of_node, (Ranks{{0, 2, 3}, {1, 4}}));
    const int own = node.topology.node_of(world.rank());
    EXPECT_EQ(node.host_rank, node.topology.local_rank_of(world.rank()));
    EXPECT_EQ(node.host_size, own == 0 ? 3 : 2);
    EXPECT_GT(node.smallest_memory, 0U);
    EXPECT_EQ(node.over_sockets, active_rdma_ports().empty());

    const NodeMemory::MemoryBlock block = node.memory->allocate(64);
    block.data[0] = static_cast<std::byte>(10 + world.rank());
    const auto places = world.all_gather(std::as_bytes(std::span(&block.location, 1)));
    for (const int peer : node.topology.ranks_of_node[static_cast<std::size_t>(own)]) {
      Location place;
      std::memcpy(&place, places[static_cast<std::size_t>(peer)].data(), sizeof place);
      const std::byte* const seen =
          node.memory->address(node.topology.local_rank_of(peer), place, 64);
      EXPECT_EQ(seen[0], static_cast<std::byte>(10 + peer));
    }
    world.barrier();  // before memory is unmapped
  });
  test::run_ranks({0, 0, 0, 1, 1}, [](Bootstrap& world) {
    const NodeDiscovery node = discover_nodes(world, 2);
    EXPECT_EQ(node.topology.ranks_of_node, (Ranks{{0, 1}, {2}, {3, 4}}));
    EXPECT_EQ(node.host_size, world.rank() < 3 ? 3 : 2);
    EXPECT_EQ(node.host_rank, world.rank() % 3);
    world.barrier();
  });
}

}  // namespace
}  // namespace hora::internal
