#include "core/launch/command/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace hora::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

TEST(Forwarded, AreSettingsAndSearchPaths) {
  for (const char* const name :
       {"HORA_LOG_LEVEL", "NCCL_DEBUG", "UCX_TLS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PATH",
        "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_VISIBLE_DEVICES", "OMPI_MCA_btl", "PRTE_MCA_plm"}) {
    EXPECT_TRUE(is_forwarded(name)) << name;
  }
  for (const char* const name :
       {"HORARUN_TOKEN", "HORARUN_", "SSH_AUTH_SOCK", "SLURM_JOB_ID", "DISPLAY", "HOME", "TMPDIR",
        "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "OMPI_MCA_orte_hnp_uri",
        "OMPI_MCA_ess_base_vpid", "LD_PRELOAD", "AWS_SECRET_ACCESS_KEY", "path", "PATHS", "HORA",
        ""}) {
    EXPECT_FALSE(is_forwarded(name)) << name;
  }
}

TEST(Forwarded, VariablesOfAnEnvironment) {
  const char* const entries[] = {
      "A=1", "B=x=y", "C=", "noequals", "=d", "1A=2", "BASH_FUNC_f%%=()", nullptr};
  EXPECT_THAT(variables_of(entries),
              ElementsAre(Variable{"A", "1"}, Variable{"B", "x=y"}, Variable{"C", ""}));
}

const std::vector<Variable> kEnvironment = {
    {"PATH", "/bin"}, {"HOME", "/home"}, {"HORA_SPIN", "0"}, {"MINE", "a b"}, {"HORARUN_X", "t"}};

TEST(Forwarded, AreThoseOfTheListAndTheUsers) {
  EXPECT_THAT(forwarded_variables(kEnvironment, {}),
              ElementsAre(Variable{"HORA_SPIN", "0"}, Variable{"PATH", "/bin"}));
  EXPECT_THAT(forwarded_variables(kEnvironment, {"MINE", "HOME", "NONE", "MINE"}),
              ElementsAre(Variable{"HOME", "/home"}, Variable{"HORA_SPIN", "0"},
                          Variable{"MINE", "a b"}, Variable{"PATH", "/bin"}));
}

using Variables = std::map<std::string, std::string, std::less<>>;

tl::expected<RankPlace, std::string> place(const Variables& variables) {
  return rank_of_environment([&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

const Variables kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                            {"OMPI_COMM_WORLD_SIZE", "6"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}};
const Variables kSlurm = {{"SLURM_PROCID", "4"},
                          {"SLURM_NTASKS", "5"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "1"},
                          {"SLURM_STEP_TASKS_PER_NODE", "3,2"}};

TEST(RankOfEnvironment, OfEachLauncher) {
  EXPECT_EQ(place(kOpenMpi), (RankPlace{2, 6, 1, 3}));
  EXPECT_EQ(place({{"PMI_RANK", "0"},
                   {"PMI_SIZE", "4"},
                   {"MPI_LOCALRANKID", "0"},
                   {"MPI_LOCALNRANKS", "2"}}),
            (RankPlace{0, 4, 0, 2}));
  EXPECT_EQ(place(kSlurm), (RankPlace{4, 5, 1, 2}));
}

TEST(RankOfEnvironment, OfMpirunWithinSlurmIsMpiruns) {
  Variables both = kSlurm;
  both.insert(kOpenMpi.begin(), kOpenMpi.end());
  EXPECT_EQ(place(both), (RankPlace{2, 6, 1, 3}));
}

TEST(RankOfEnvironment, SaysWhatIsMissingOrWrong) {
  EXPECT_THAT(place({}).error(), HasSubstr("no mpirun has started"));
  for (const auto& [name, value] : kOpenMpi) {
    if (name == "OMPI_COMM_WORLD_RANK") continue;
    Variables less = kOpenMpi;
    less.erase(name);
    EXPECT_THAT(place(less).error(), HasSubstr("but not " + name));
  }
  for (const char* const text : {"", "-1", "x", "1x", "99999999999999999999", " 1"}) {
    Variables wrong = kOpenMpi;
    wrong["OMPI_COMM_WORLD_LOCAL_RANK"] = text;
    EXPECT_THAT(place(wrong).error(), HasSubstr("no number of a rank")) << text;
  }
  Variables beyond = kOpenMpi;
  beyond["OMPI_COMM_WORLD_RANK"] = "6";
  EXPECT_THAT(place(beyond).error(), HasSubstr("rank 6 of 6"));
  Variables node = kSlurm;
  node["SLURM_NODEID"] = "2";
  EXPECT_THAT(place(node).error(), HasSubstr("no node 2"));
}

std::vector<std::string> hosts(const std::string& list) {
  const auto names = expand_host_list(list);
  EXPECT_TRUE(names) << (names ? "" : names.error());
  return names.value_or(std::vector<std::string>{});
}

std::string list_refusal(const std::string& list) {
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
    EXPECT_THAT(list_refusal(list), HasSubstr("Slurm's list \"")) << list;
  }
  EXPECT_THAT(list_refusal("[-oProxyCommand]"), HasSubstr("a range that is none"));
}

TEST(SlurmHostList, IsBounded) {
  EXPECT_THAT(list_refusal("a[0-65536]"), HasSubstr("more than 65536"));
  EXPECT_THAT(list_refusal("a[0-999999999]"), HasSubstr("more than 65536"));
  EXPECT_THAT(list_refusal("a[0-999][0-999]"), HasSubstr("more than 65536"));
  EXPECT_THAT(list_refusal("a[0-65000],b[0-65000]"), HasSubstr("more than 65536"));
  EXPECT_THAT(list_refusal("a[1][1][1][1][1][1][1][1][1]"), HasSubstr("more than 8 brackets"));
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
  EXPECT_THAT(*slurm_hosts(variables), ElementsAre(HostSlots{"a1", 8}, HostSlots{"a2", 4}));
  variables.cpus_per_task = "3";
  EXPECT_THAT(*slurm_hosts(variables), ElementsAre(HostSlots{"a1", 2}, HostSlots{"a2", 1}));
  variables.ntasks_requested = true;
  EXPECT_THAT(*slurm_hosts(variables), ElementsAre(HostSlots{"a1", 1}, HostSlots{"a2", 1}));
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
