// From a command line to a job: each flag is seen in what is started; and --check-build.
#include "core/launch/program/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>

#include "core/launch/control/system.h"
#include "tests/core/launch/options/parsed.h"
#include "tests/support/environment_variable.h"

namespace hora::launch {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;
using testing::StartsWith;

const std::string kSelf = "/opt/hora/bin/horarun";

MATCHER_P2(HostIs, name, ranks, "") {
  return arg.name == name && arg.ranks == ranks;
}

using ScopedVariable = internal::test::EnvironmentVariable;

/// Jobs of "train" under an mpirun that says that it is Open MPI 4.
class MakeJob : public testing::Test {
 protected:
  MakeJob() {
    std::filesystem::permissions(mpirun_, std::filesystem::perms::owner_all);
    ::unsetenv("SLURM_JOB_NODELIST");
    ::unsetenv("PBS_NODEFILE");
    ::unsetenv("HORARUN_SSH");
    ::unsetenv("OMP_NUM_THREADS");
  }

  tl::expected<Job, std::string> job_or_error(test::Line line) {
    line.insert(line.begin(), {"--mpirun", mpirun_});
    line.insert(line.end(), {"train", "--epochs", "3"});
    return make_job(test::parsed(line, environment_), kSelf);
  }
  Job job(const test::Line& line) {
    auto result = job_or_error(line);
    EXPECT_TRUE(result) << result.error();
    return result ? std::move(*result) : Job{};
  }
  static const JobPlan& plan_of(const Job& job) { return job.launcher.plan; }
  static Start start_of(const Job& job) { return job.launcher.plan.mpirun(nullptr).value(); }

  internal::test::TemporaryFolder folder_;
  std::string mpirun_ =
      test::written(folder_, "mpirun", "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\n");
  test::Line environment_;
};

TEST_F(MakeJob, RunsRanksOnThisHost) {
  const Job made = job({"-np", "3"});
  EXPECT_THAT(plan_of(made).hosts, ElementsAre(HostIs("localhost", 3)));
  EXPECT_EQ(made.mpirun.arguments.front(), mpirun_);
  EXPECT_THAT(made.mpirun.arguments, IsSupersetOf({"--host", "localhost:3", "-np", "3"}));
  EXPECT_EQ(start_of(made).arguments, made.mpirun.arguments);
  ASSERT_EQ(made.launcher.agents.size(), 1U);
  EXPECT_THAT(plan_of(made).hosts.front().agent_command, ElementsAre(kSelf, "--agent"));
  const Prepare& request = plan_of(made).preparation;
  EXPECT_EQ(request.program, "train");
  EXPECT_EQ(request.folder, std::filesystem::current_path());
  EXPECT_EQ(request.world_size, 3U);
  EXPECT_GT(plan_of(made).needs.shared_memory, 0U);
  EXPECT_GT(plan_of(made).needs.memory, 0U);
}

TEST_F(MakeJob, SaysThatAnMpirunIsNotThere) {
  const LaunchOptions options = test::parsed({"--mpirun", "/no/mpirun", "train"});
  const auto refused = make_job(options, kSelf);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error(), HasSubstr("--mpirun \"/no/mpirun\""));
}

TEST_F(MakeJob, ReachesHostsBySsh) {
  const Job made = job({"-H", "localhost:1,b:2", "--ssh-port", "22022", "--ssh-identity-file",
                        "/key", "--start-timeout", "7"});
  EXPECT_THAT(plan_of(made).hosts, ElementsAre(HostIs("localhost", 1), HostIs("b", 2)));
  EXPECT_THAT(plan_of(made).hosts[1].agent_command,
              ElementsAre("ssh", "-p", "22022", "-i", "/key", "-o", "BatchMode=yes", "-o",
                          "ConnectTimeout=7", "b", "--", kSelf, "--agent"));
  EXPECT_EQ(plan_of(made).start_timeout, Moment(7000));
}

TEST_F(MakeJob, MpirunRunsHereEvenWithoutRanks) {
  const Job made = job({"-H", "b:2"});
  EXPECT_THAT(plan_of(made).hosts, ElementsAre(HostIs("b", 2), HostIs("localhost", 0)));
  EXPECT_EQ(plan_of(made).launcher_host, 1U);
}

TEST_F(MakeJob, RanksPerHostAreSlots) {
  EXPECT_THAT(plan_of(job({"--nproc-per-node", "2"})).hosts, ElementsAre(HostIs("localhost", 2)));
  EXPECT_THAT(plan_of(job({"-H", "localhost:4,b:4", "--nproc-per-node", "2"})).hosts,
              ElementsAre(HostIs("localhost", 2), HostIs("b", 2)));
}

TEST_F(MakeJob, RanksPerHostHoldForAnAllocation) {
  const std::string scontrol = test::written(folder_, "scontrol", "#!/bin/sh\necho n1; echo n2\n");
  std::filesystem::permissions(scontrol, std::filesystem::perms::owner_all);
  const ScopedVariable path("PATH", folder_.path().string() + ":" + std::getenv("PATH"));
  const ScopedVariable nodes("SLURM_JOB_NODELIST", "n[1-2]");
  const ScopedVariable cpus("SLURM_JOB_CPUS_PER_NODE", "8(x2)");
  environment_ = {"SLURM_JOB_NODELIST=n[1-2]"};
  EXPECT_THAT(plan_of(job({"--nproc-per-node", "2"})).hosts,
              ElementsAre(HostIs("n1", 2), HostIs("n2", 2), HostIs("localhost", 0)));
  EXPECT_THAT(plan_of(job({"-np", "3", "--nproc-per-node", "2"})).hosts,
              ElementsAre(HostIs("n1", 2), HostIs("n2", 1), HostIs("localhost", 0)));
  const auto refused = job_or_error({"-np", "5", "--nproc-per-node", "2"});
  EXPECT_THAT(refused ? "" : refused.error(), HasSubstr("together 4"));
}

TEST_F(MakeJob, HostsOfPbsAreThoseOfItsFile) {
  const std::string path = test::written(folder_, "nodes", "n1\nn1\nn2\n");
  const ScopedVariable file("PBS_NODEFILE", path);
  environment_ = {"PBS_NODEFILE=" + path};
  EXPECT_THAT(plan_of(job({})).hosts,
              ElementsAre(HostIs("n1", 2), HostIs("n2", 1), HostIs("localhost", 0)));
  EXPECT_THAT(plan_of(job({"--nproc-per-node", "4"})).hosts,
              ElementsAre(HostIs("n1", 4), HostIs("n2", 4), HostIs("localhost", 0)));
  EXPECT_THAT(plan_of(job({"-H", "localhost:1"})).hosts, ElementsAre(HostIs("localhost", 1)));
  const ScopedVariable missing("PBS_NODEFILE", "/none");
  const auto refused = job_or_error({});
  EXPECT_THAT(refused ? "" : refused.error(), HasSubstr("PBS_NODEFILE: the file /none cannot"));
}

TEST_F(MakeJob, OversubscribesWhereAllowed) {
  EXPECT_THAT(plan_of(job({"-np", "5", "-H", "localhost:1,b:2", "--oversubscribe"})).hosts,
              ElementsAre(HostIs("localhost", 2), HostIs("b", 3)));
}

TEST_F(MakeJob, StartsInTheFolderThatIsNamed) {
  const Job made = job({"--wdir", folder_.path().string()});
  EXPECT_EQ(plan_of(made).preparation.folder, folder_.path());
  EXPECT_EQ(start_of(made).folder, folder_.path());
  EXPECT_THAT(made.mpirun.arguments, Not(Contains("--wdir")));
  EXPECT_EQ(plan_of(job({"--wdir", "below"})).preparation.folder,
            (std::filesystem::current_path() / "below").string());
}

TEST_F(MakeJob, VariablesAndSettingsReachAllHosts) {
  const ScopedVariable lower("http_proxy", "http://proxy");
  const Job made =
      job({"-H", "localhost:1,b:1", "-x", "http_proxy", "-x", "MINE=a b", "--timeout", "9"});
  const std::vector<std::string> remote = plan_of(made).daemon_environment(1, nullptr);
  EXPECT_THAT(remote, IsSupersetOf({"http_proxy=http://proxy", "MINE=a b", "HORA_TIMEOUT=9"}));
  EXPECT_THAT(start_of(made).environment, IsSupersetOf({"MINE=a b", "HORA_TIMEOUT=9"}));
  EXPECT_THAT(job({"-x", "NOT_SET_ANYWHERE", "-x", "MINE="}).notices,
              ElementsAre(HasSubstr("-x NOT_SET_ANYWHERE: it is not set")));
}

TEST_F(MakeJob, AFlagReplacesAVariable) {
  const ScopedVariable own("HORA_TIMEOUT", "8");
  const std::vector<std::string> remote =
      plan_of(job({"-H", "localhost:1,b:1", "--timeout", "9"})).daemon_environment(1, nullptr);
  EXPECT_THAT(remote, AllOf(Contains("HORA_TIMEOUT=9"), Not(Contains("HORA_TIMEOUT=8"))));
}

TEST_F(MakeJob, NetworkVariablesAreTheUsersWhereSet) {
  const ScopedVariable own("GLOO_SOCKET_IFNAME", "mine");
  const Job made = job({"-H", "localhost:1,b:1", "-x", "NCCL_SOCKET_IFNAME=eth7",
                        "--network-interfaces", "eth0,ens3"});
  EXPECT_THAT(plan_of(made).network_interfaces, ElementsAre("eth0", "ens3"));
  NetworkChoice network;
  network.interfaces = {{"eth0"}, {"ens3"}};
  network.addresses = {*parse_address("10.0.0.1"), *parse_address("10.0.0.2")};
  EXPECT_THAT(plan_of(made).mpirun(&network)->environment,
              AllOf(Contains("NCCL_SOCKET_IFNAME=eth7"), Contains("FI_TCP_IFACE=eth0"),
                    Not(Contains(StartsWith("GLOO_SOCKET_IFNAME")))));
  EXPECT_THAT(plan_of(made).daemon_environment(1, &network),
              AllOf(Contains("NCCL_SOCKET_IFNAME=eth7"), Contains("GLOO_SOCKET_IFNAME=mine"),
                    Contains("FI_TCP_IFACE=ens3"), Not(Contains("GLOO_SOCKET_IFNAME=ens3"))));
}

TEST_F(MakeJob, RanksAreBoundByTheirGuards) {
  const Job made = job({"--binding", "numa", "-np", "2"});
  EXPECT_THAT(made.mpirun.arguments,
              IsSupersetOf({kSelf, std::string("--guard"), std::string("numa")}));
  EXPECT_EQ(plan_of(made).preparation.binding, "numa");
  EXPECT_EQ(plan_of(made).preparation.threads, "");
}

TEST_F(MakeJob, ThreadsAreTheUsersWhereSet) {
  const ScopedVariable own("OMP_NUM_THREADS", "3");
  EXPECT_EQ(plan_of(job({"-np", "2"})).preparation.threads, "3");
  EXPECT_EQ(plan_of(job({"-np", "2", "-x", "OMP_NUM_THREADS=4"})).preparation.threads, "4");
}

TEST_F(MakeJob, ArgumentsForMpirunStandBeforeTheProgram) {
  const Job made = job({"--mpi-args", "--mca btl self", "--tune", "/dev/null"});
  EXPECT_THAT(made.mpirun.arguments, IsSupersetOf({"--mca", "btl", "self", "--tune", "/dev/null"}));
}

TEST_F(MakeJob, OutputIsAsTheFlagsSay) {
  const Job made = job({"-np", "4", "--output-filename", "/out", "--ranks", "0,2-3",
                        "--prefix-output", "--verbose", "--no-autotune"});
  EXPECT_EQ(made.launcher.output.folder, "/out");
  EXPECT_THAT(made.launcher.output.shown, testing::UnorderedElementsAre(0, 2, 3));
  EXPECT_TRUE(made.launcher.output.prefix);
  EXPECT_TRUE(made.launcher.verbose);
  EXPECT_THAT(made.notices, ElementsAre(HasSubstr("--no-autotune changes nothing")));
  EXPECT_FALSE(job({"-np", "4", "--prefix-output=off"}).launcher.output.prefix);
  EXPECT_THAT(job({"-np", "4"}).notices, IsEmpty());
}

TEST_F(MakeJob, NodesThatMeetAreTheHosts) {
  NodesMet met;
  met.nodes.push_back({"a", "", 2});
  met.nodes.push_back({"b", "", 2});
  met.nodes.push_back({"b", "", 1});
  LaunchOptions options = test::parsed({"--mpirun", mpirun_, "train"});
  const auto made = make_job(options, kSelf, std::move(met));
  ASSERT_TRUE(made) << made.error();
  EXPECT_THAT(plan_of(*made).hosts,
              ElementsAre(HostIs("a", 2), HostIs("b-1", 2), HostIs("b-2", 1)));
  EXPECT_EQ(plan_of(*made).preparation.world_size, 5U);
}

TEST_F(MakeJob, DryRunPrintsCommandsThatAShellReads) {
  const std::string text = dry_run_text(job({"-H", "localhost:1,b:1"}));
  EXPECT_THAT(text, AllOf(StartsWith(kSelf + " --agent\nssh "), HasSubstr("\n"),
                          HasSubstr(mpirun_ + " --noprefix")));
}

std::string printed(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), HORARUN);
  const auto output = captured_output(arguments, std::chrono::seconds(60));
  return output ? output->text : output.error();
}

TEST(CheckBuild, SaysWhatThereIsAndWhatIsMissing) {
  const std::string text = printed({"--check-build"});
  EXPECT_THAT(text, AllOf(StartsWith("hora      " HORA_VERSION "\nMPI       built with "),
                          HasSubstr("; started by /"), HasSubstr("\n          its library: "),
                          HasSubstr("\nLibTorch  "), HasSubstr("\nCUDA      "),
                          HasSubstr("\nNCCL      "), Not(HasSubstr("cannot be used"))));
  EXPECT_THAT(printed({"--check-build", "--mpirun", "/no/mpirun"}),
              HasSubstr("--mpirun \"/no/mpirun\": there is no such program"));
}

TEST(CheckBuild, SaysThatMpirunIsAnotherMpis) {
  const internal::test::TemporaryFolder folder;
  const auto text = [&](const char* words) {
    const std::string mpirun =
        test::written(folder, "mpirun", std::string("#!/bin/sh\necho '") + words + "'\n");
    std::filesystem::permissions(mpirun, std::filesystem::perms::owner_all);
    return printed({"--check-build", "--mpirun", mpirun});
  };
  const std::string hydra = text("HYDRA build details:\nVersion: 4.0.2");
  const std::string open_mpi = text("mpirun (Open MPI) 4.1.4");
  EXPECT_THAT(hydra, HasSubstr("mpirun (MPICH 4.0.2)"));
  EXPECT_THAT(open_mpi, HasSubstr("mpirun (Open MPI 4.1.4)"));
  const auto is_other = HasSubstr(", which starts other programs: name the mpirun of ");
  const bool built_with_mpich = hydra.find("which starts other") == std::string::npos;
  EXPECT_THAT(built_with_mpich ? open_mpi : hydra, is_other);
  EXPECT_THAT(built_with_mpich ? hydra : open_mpi, Not(is_other));
}

}  // namespace
}  // namespace hora::launch
