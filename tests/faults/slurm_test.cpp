// Jobs inside a Slurm allocation of two nodes, both of them this machine. srun is a script that
// takes no other options than those of srun_prefix().
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "core/launch/command/command.h"
#include "tests/faults/fault_test.h"
#include "tests/support/environment_variable.h"
#include "tests/support/read_file.h"

namespace hora::launch::test {
namespace {

using testing::ElementsAreArray;

class Allocation : public FaultTest {
 protected:
  void SetUp() override {
    if (!hosts_can_have_names()) GTEST_SKIP() << kNoHosts;
    std::filesystem::create_symlink(FAULTS_FOLDER "/srun.sh", srun_.file("srun"));
    // It is given lists without brackets.
    std::ofstream(srun_.file("scontrol")) << "#!/bin/sh\necho \"$3\" | tr , '\\n'\n";
    ::chmod(srun_.file("scontrol").c_str(), 0700);
  }

  /// From a batch script, which Slurm runs on node1. PATH leads to srun and the program.
  LaunchedJob& submit(const std::vector<std::string>& arguments,
                      const std::vector<std::string>& more_variables = {},
                      const std::string& nodes = "node1,node2") {
    std::vector<std::string> environment{
        "SLURM_JOB_ID=7",
        "SLURM_JOB_NODELIST=" + nodes,
        "SLURM_NODELIST=" + nodes,
        "SLURM_JOB_NUM_NODES=2",
        "SLURM_JOB_CPUS_PER_NODE=2(x2)",
        "SLURM_TASKS_PER_NODE=2(x2)",
        "SLURM_CPUS_ON_NODE=2",
        "PATH=" + srun_.path().string() + ":" +
            std::filesystem::path(FAULT_RANK).parent_path().string() + ":" + std::getenv("PATH")};
    // The first of a name counts.
    environment.insert(environment.begin(), more_variables.begin(), more_variables.end());
    return start({arguments, environment, {}, "node1"});
  }
  std::vector<std::string> srun_arguments(const std::string& node) const {
    return lines_of(internal::test::read_file(srun_.file("srun." + node)));
  }

  internal::test::TemporaryFolder srun_;
};

/// ctest sets it, which horarun respects.
class AllocatedCores : public Allocation {
  const internal::test::EnvironmentVariable threads_{"OMP_NUM_THREADS"};
};

TEST_F(Allocation, GivesHostsRanksAndPathUnlessTasksOrHostsAreAskedFor) {
  struct Case {
    std::vector<std::string> hosts, variables, lines;
  };
  const std::vector<Case> cases{
      {{},
       {},
       {"node1:0: rank 0: ready", "node1:1: rank 1: ready", "node2:2: rank 2: ready",
        "node2:3: rank 3: ready"}},
      {{},
       {"SLURM_NTASKS=2", "SLURM_TASKS_PER_NODE=1(x2)", "SLURM_CPUS_PER_TASK=2"},
       {"node1:0: rank 0: ready", "node2:1: rank 1: ready"}},
      {{"-H", "node2:1"}, {}, {"node2:0: rank 0: ready"}}};
  for (const Case& each : cases) {
    std::vector<std::string> arguments = each.hosts;
    arguments.insert(arguments.end(), {"--prefix-output", "fault_rank", "none", "-", "-", "1"});
    LaunchedJob& job = submit(arguments, each.variables);
    ASSERT_EQ(job.wait(), 0) << transcript(job);
    EXPECT_THAT(lines_of(job.output()), testing::UnorderedElementsAreArray(each.lines))
        << transcript(job);
    EXPECT_THAT(srun_arguments("node2"), testing::Not(testing::IsEmpty()));
    std::filesystem::remove(srun_.file("srun.node2"));
  }
}

TEST_F(Allocation, StartsAgentsOfOtherNodesBySrun) {
  LaunchedJob& job = submit({"fault_rank", "none", "-", "-", "1"});
  ASSERT_EQ(job.wait(), 0) << transcript(job);
  auto expected = srun_prefix("srun", "node2");
  expected.erase(expected.begin());
  expected.insert(expected.end(), {std::filesystem::canonical(HORARUN).string(), "--agent"});
  EXPECT_THAT(srun_arguments("node2"), ElementsAreArray(expected));
  EXPECT_THAT(srun_arguments("node1"), testing::IsEmpty()) << "it is the launcher's own host";
}

/// Where Slurm has no plugin for it, the affinity mask holds cores that were not granted.
TEST_F(AllocatedCores, AreSharedByItsRanks) {
  const int cores = std::min(2, static_cast<int>(std::thread::hardware_concurrency()));
  for (const int granted : {1, cores}) {
    LaunchedJob& job =
        submit({"printenv", "OMP_NUM_THREADS"}, {"SLURM_NTASKS=2", "SLURM_TASKS_PER_NODE=1(x2)",
                                                 "SLURM_CPUS_ON_NODE=" + std::to_string(granted)});
    ASSERT_EQ(job.wait(), 0) << transcript(job);
    const std::string number = std::to_string(granted);
    EXPECT_THAT(lines_of(job.output()), testing::ElementsAre(number, number)) << transcript(job);
  }
}

TEST_F(Allocation, ADeadRankIsNamedWithItsNode) {
  LaunchedJob& job = submit({"fault_rank", "none", "-", "-", "0"});
  ASSERT_TRUE(job.wait_for(": ready", 4)) << transcript(job);
  const pid_t rank = job.rank(3);
  ::kill(rank, SIGKILL);
  expect_cause(137, {rank_text(3, "node2", rank), "was killed by signal 9 (SIGKILL)"}, Seconds(10));
}

TEST_F(Allocation, AnElasticJobGoesOnWithTheNodesThatAreLeft) {
  LaunchedJob& job = submit({"--elastic", "--min-np", "2", "fault_rank", "none", "-", "-", "0"},
                            {"FAULTS_PROGRESS=" + srun_.file("step")});
  ASSERT_TRUE(job.wait_for(": ready", 4)) << transcript(job);
  ::kill(job.process(JobProcess::Kind::agent, -1, "node2"), SIGKILL);
  ASSERT_TRUE(job.wait_for("host node2: its agent has ended")) << transcript(job);
  EXPECT_TRUE(job.wait_for("; 2 ranks on node1 go on at step ")) << transcript(job);
  interrupt();
}

TEST_F(Allocation, ANodeThatSrunCannotReachIsNamedWithItsWords) {
  submit({"fault_rank", "none", "-", "-"}, {}, "node1,drained");
  expect_cause(69,
               {"host drained: no agent could be started there", "srun", "exit status 1",
                "Requested nodes are not available"},
               Seconds(10));
}

TEST_F(Allocation, VariablesThatContradictAreNamed) {
  submit({"fault_rank", "none", "-", "-"}, {"SLURM_JOB_CPUS_PER_NODE=2"});
  expect_cause(2, {"SLURM_JOB_CPUS_PER_NODE", "has numbers for 1 hosts"}, Seconds(5));
}

}  // namespace
}  // namespace hora::launch::test
