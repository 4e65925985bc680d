#include "core/launch/command/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "tests/support/temporary_folder.h"

namespace hora::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

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

EnvironmentLookup lookup_in(const Variables& variables) {
  return [&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

tl::expected<RankPlace, std::string> place(const Variables& variables) {
  return rank_of_environment(lookup_in(variables));
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
    EXPECT_THAT(place(less).error(), HasSubstr("but " + name + " is \"\""));
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

TEST(SlurmCounts, AreExpanded) {
  EXPECT_THAT(*expand_counts("2(x3),1"), ElementsAre(2, 2, 2, 1));
  EXPECT_THAT(*expand_counts("16"), ElementsAre(16));
  for (const char* const text : {"", "0", "2(x3", "2(x)", "2(x0)", "2(3)", "a", "1,", "1 ", "-1",
                                 "1(x999999)", "2(x65000),2(x65000)"}) {
    EXPECT_FALSE(expand_counts(text)) << text;
  }
}

/// Hosts of an allocation whose scontrol gives each comma of the list a line; or the error.
std::string slurm(Variables variables) {
  const internal::test::TemporaryFolder folder;
  std::ofstream(folder.file("scontrol")) << "#!/bin/sh\nprintf '%s' \"$3\" | /usr/bin/tr , '\\n'\n";
  std::filesystem::permissions(folder.file("scontrol"), std::filesystem::perms::owner_all);
  variables.try_emplace("PATH", folder.path());
  const auto hosts = slurm_hosts(lookup_in(variables));
  if (!hosts) return hosts.error();
  std::string text;
  for (const HostSlots& host : *hosts) text += fmt::format("{}:{} ", host.name, host.slots);
  return text;
}

TEST(SlurmHosts, HaveTasksWhereAskedForElseCores) {
  Variables variables{{"SLURM_JOB_NODELIST", "a1,a2"},
                      {"SLURM_TASKS_PER_NODE", "1(x2)"},
                      {"SLURM_JOB_CPUS_PER_NODE", "8,4"}};
  EXPECT_EQ(slurm(variables), "a1:8 a2:4 ");
  variables["SLURM_CPUS_PER_TASK"] = "3";
  EXPECT_EQ(slurm(variables), "a1:2 a2:1 ");
  variables["SLURM_NTASKS"] = "2";
  EXPECT_EQ(slurm(variables), "a1:1 a2:1 ");
  EXPECT_EQ(slurm({}), "");
  variables["PATH"] = "/none";
  EXPECT_THAT(slurm(variables), HasSubstr("scontrol, which says its hosts, is not on PATH"));
}

TEST(SlurmHosts, SayWhatContradicts) {
  EXPECT_THAT(slurm({{"SLURM_JOB_NODELIST", "a"}, {"SLURM_JOB_CPUS_PER_NODE", "1(x2)"}}),
              HasSubstr("names 1 hosts, but SLURM_JOB_CPUS_PER_NODE has numbers for 2 hosts"));
  EXPECT_THAT(slurm({{"SLURM_JOB_NODELIST", "a"}}), HasSubstr("SLURM_JOB_CPUS_PER_NODE: "));
  EXPECT_THAT(slurm({{"SLURM_JOB_NODELIST", "-oProxy"}}), HasSubstr("SLURM_JOB_NODELIST=\"-oP"));
}

TEST(SrunPrefix, StartsOneProcessOnOneHost) {
  const auto prefix = srun_prefix("/usr/bin/srun", "a1");
  EXPECT_EQ(prefix.front(), "/usr/bin/srun");
  EXPECT_THAT(prefix, testing::IsSupersetOf(
                          {"--nodes=1", "--ntasks=1", "--nodelist=a1", "--overlap", "--mpi=none"}));
}

}  // namespace
}  // namespace hora::launch
