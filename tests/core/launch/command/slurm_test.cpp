#include "core/launch/command/slurm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hora::launch {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

std::vector<std::string> hosts(const std::string& list) {
  const auto names = expand_host_list(list);
  EXPECT_TRUE(names) << (names ? "" : names.error());
  return names.value_or(std::vector<std::string>{});
}

std::string refusal(const std::string& list) {
  const auto names = expand_host_list(list);
  EXPECT_FALSE(names) << list;
  return names ? "" : names.error();
}

TEST(SlurmHostList, IsExpandedAsSlurmDoesIt) {
  EXPECT_THAT(hosts("a"), ElementsAre("a"));
  EXPECT_THAT(hosts("a[1-3,07-09],b"), ElementsAre("a1", "a2", "a3", "a07", "a08", "a09", "b"));
  EXPECT_THAT(hosts("a[8-11]"), ElementsAre("a8", "a9", "a10", "a11"));
  EXPECT_THAT(hosts("n[098-101].x"), ElementsAre("n098.x", "n099.x", "n100.x", "n101.x"));
  EXPECT_THAT(hosts("r[1-2]n[0-1],gpu-1"), ElementsAre("r1n0", "r1n1", "r2n0", "r2n1", "gpu-1"));
  EXPECT_THAT(hosts("a[5]"), ElementsAre("a5"));
  EXPECT_THAT(hosts("n[1-65536]"), SizeIs(kMostSlurmHosts));
}

TEST(SlurmHostList, RefusesWhatIsNone) {
  for (const char* const list :
       {"",      ",",     "a,",     ",a",     "a[",       "a[1",           "a[]",
        "a[1-]", "a[-1]", "a[2-1]", "a[1,]",  "a[1-2-3]", "a[x]",          "a]1",
        "-a",    "a b",   "a;b",    "a[1][2", "a[[1]]",   "a[1234567890]", "a[1],"}) {
    EXPECT_THAT(refusal(list), HasSubstr("Slurm's list \"")) << list;
  }
  EXPECT_THAT(refusal("[-oProxyCommand]"), HasSubstr("a range that is none"));
}

TEST(SlurmHostList, IsBounded) {
  EXPECT_THAT(refusal("a[0-65536]"), HasSubstr("more than 65536"));
  EXPECT_THAT(refusal("a[0-999999999]"), HasSubstr("more than 65536"));
  EXPECT_THAT(refusal("a[0-999][0-999]"), HasSubstr("more than 65536"));
  EXPECT_THAT(refusal("a[0-65000],b[0-65000]"), HasSubstr("more than 65536"));
  EXPECT_THAT(refusal("a[1][1][1][1][1][1][1][1][1]"), HasSubstr("more than 8 brackets"));
}

TEST(SlurmCounts, AreExpanded) {
  EXPECT_THAT(*expand_counts("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(*expand_counts("16"), ElementsAre(16));
  for (const char* const text : {"", "0", "2(x3", "2(x)", "2(x0)", "2(3)", "a", "1,", "1 ", "-1",
                                 "1(x999999)", "2(x65000),2(x65000)"}) {
    EXPECT_FALSE(expand_counts(text)) << text;
  }
}

TEST(SlurmHosts, HaveTasksWhereAskedForElseCores) {
  SlurmVariables variables{"a[1-2]", "1(x2)", "8,4", std::nullopt, false};
  EXPECT_THAT(*slurm_hosts(variables), ElementsAre(SlurmHost{"a1", 8}, SlurmHost{"a2", 4}));
  variables.cpus_per_task = "3";
  EXPECT_THAT(*slurm_hosts(variables), ElementsAre(SlurmHost{"a1", 2}, SlurmHost{"a2", 1}));
  variables.ntasks_requested = true;
  EXPECT_THAT(*slurm_hosts(variables), ElementsAre(SlurmHost{"a1", 1}, SlurmHost{"a2", 1}));
}

TEST(SlurmHosts, SayWhatContradicts) {
  EXPECT_THAT(slurm_hosts({"a", "1(x2)", "1(x2)", {}, true}).error(),
              HasSubstr("numbers for 2 hosts, SLURM_JOB_NODELIST names 1"));
  EXPECT_THAT(slurm_hosts({"a", {}, {}, {}, false}).error(),
              HasSubstr("SLURM_JOB_CPUS_PER_NODE is not set"));
  EXPECT_THAT(slurm_hosts({"a[", {}, "1", {}, false}).error(), HasSubstr("SLURM_JOB_NODELIST: "));
}

TEST(SlurmHosts, AreThoseOfTheAllocationAlone) {
  const SlurmVariables variables{"a[1-2]", "1(x2)", "8,4", std::nullopt, false};
  EXPECT_TRUE(is_allocated(variables, "a2"));
  EXPECT_FALSE(is_allocated(variables, "a3"));
  EXPECT_FALSE(is_allocated({}, ""));
  EXPECT_FALSE(is_allocated({"a[", {}, {}, {}, false}, "a"));
}

TEST(SrunPrefix, StartsOneProcessOnOneHost) {
  const auto prefix = srun_prefix("/usr/bin/srun", "a1");
  EXPECT_EQ(prefix.front(), "/usr/bin/srun");
  EXPECT_THAT(prefix, testing::IsSupersetOf(
                          {"--nodes=1", "--ntasks=1", "--nodelist=a1", "--overlap", "--mpi=none"}));
}

}  // namespace
}  // namespace hora::launch
