#include "core/launch/command/resource_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace hora::launch {
namespace {

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

TEST(CgroupLimit, OfVersion2IsTheLeastUpToTheRoot) {
  Files files = {{"/proc/self/cgroup", "0::/a/b/c\n"},
                 {"/sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n"},
                 {"/sys/fs/cgroup/a/b/cpu.max", "250000 100000\n"},
                 {"/sys/fs/cgroup/a/cpu.max", "400000 100000\n"}};
  EXPECT_EQ(limit_of(files), 2.5);
  files["/sys/fs/cgroup/cpu.max"] = "50000 100000\n";
  EXPECT_EQ(limit_of(files), 0.5);
  EXPECT_EQ(limit_of({{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/cpu.max", "1 2"}}), 0.5);
}

TEST(CgroupLimit, OfVersion1) {
  EXPECT_EQ(limit_of({{"/proc/self/cgroup", "3:memory:/x\n4:cpu,cpuacct:/docker/1\n0::/\n"},
                      {"/sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us", "-1\n"},
                      {"/sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_period_us", "100000\n"},
                      {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "150000\n"},
                      {"/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"}}),
            1.5);
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

TEST(AvailableMemory, OfVersion2IsTheLeastUpToTheRoot) {
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

TEST(AvailableMemory, OfVersion1) {
  Files files = {{"/proc/meminfo", kMeminfo},
                 {"/proc/self/cgroup", "9:memory:/docker/1\n"},
                 {"/sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "9223372036854771712\n"},
                 {"/sys/fs/cgroup/memory/docker/1/memory.usage_in_bytes", "1000\n"},
                 {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "500000\n"},
                 {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "400000\n"},
                 {"/sys/fs/cgroup/memory/memory.stat", "cache 9\ntotal_inactive_file 1\n"}};
  EXPECT_EQ(memory_of(files), 100001U);
  files["/sys/fs/cgroup/memory/memory.usage_in_bytes"] = "many";
  EXPECT_EQ(memory_of(files), 1024000U);
}

TEST(OomKills, AreThoseOfTheCgroupItself) {
  const auto kills = [](const Files& files) { return oom_kills(reader_of(files)); };
  EXPECT_EQ(kills({{"/proc/self/cgroup", "0::/a/b\n"},
                   {"/sys/fs/cgroup/a/b/memory.events", "low 0\noom 3\noom_kill 2\n"},
                   {"/sys/fs/cgroup/a/memory.events", "oom_kill 9\n"}}),
            2U);
  EXPECT_EQ(kills({{"/proc/self/cgroup", "9:memory:/docker/1\n0::/\n"},
                   {"/sys/fs/cgroup/memory/memory.oom_control",
                    "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"}}),
            4U)
      << "a container sees its own as the root";
  EXPECT_EQ(kills({}), 0U);
}

TEST(AvailableMemory, OfThisMachine) {
  EXPECT_GT(available_memory(read_small_file), 0U);
}

}  // namespace
}  // namespace hora::launch
