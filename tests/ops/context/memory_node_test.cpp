#include "ops/context/memory_node.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

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

TEST(MemoryNode, IsThatOfTheOnlyProcessor) {
  for (const int cpu : processors()) {
    EXPECT_EQ(memory_node(machine(cpu + 1, 1), {cpu}), cpu);
    EXPECT_EQ(memory_node(machine(2, cpu + 1), {cpu}), 0);
  }
}

TEST(MemoryNode, OfProcessorsOfTheSameOneIsThatOne) {
  const std::vector<int> all = processors();
  EXPECT_EQ(memory_node(machine(2, all.back() + 1), all), 0);
}

TEST(MemoryNode, IsNoneForProcessorsOfSeveral) {
  const std::vector<int> all = processors();
  if (all.size() < 2) GTEST_SKIP() << "this test needs two processors";
  EXPECT_EQ(memory_node(machine(all.back() + 1, 1), all), kNoMemoryNode);
}

TEST(MemoryNode, IsNoneForProcessorsThatTheMachineLacks) {
  const int last = processors().back();
  if (last == 0) GTEST_SKIP() << "this test needs a processor beside number 0";
  EXPECT_EQ(memory_node(machine(1, last), {last}), kNoMemoryNode);
}

TEST(MemoryNode, OfThisMachineIsOneThatItHas) {
  const int node = memory_node_of_process();
  EXPECT_GE(node, kNoMemoryNode);
  EXPECT_LT(node, 1024);
}

}  // namespace
}  // namespace hora::internal
