// From a command line to a job: each flag is seen in what is started; and --check-build.
#include "core/launch/program/job.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <list>

#include "core/launch/control/system.h"
#include "tests/core/launch/texts.h"
#include "tests/support/environment_variable.h"

namespace hora::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kSelf = "/opt/hora/bin/horarun";
const std::string kOpenMpi4Script = "echo 'mpirun (Open MPI) 4.1.4'";

/// Jobs of "train" under an mpirun that says that it is Open MPI 4.
class MakeJob : public testing::Test {
 protected:
  using Environment = std::vector<std::pair<const char*, std::string>>;

  MakeJob() {
    for (const char* name :
         {"SLURM_JOB_NODELIST", "PBS_NODEFILE", "HORARUN_SSH", "OMP_NUM_THREADS", "HORA_TIMEOUT",
          "http_proxy", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "FI_TCP_IFACE"}) {
      ::unsetenv(name);
    }
  }

  tl::expected<Job, std::string> job(test::Line line, const Environment& environment = {},
                                     NodesMet met = {}) {
    test::Line entries;
    std::list<internal::test::EnvironmentVariable> variables;
    for (const auto& [name, value] : environment) {
      variables.emplace_back(name, value);
      entries.push_back(std::string(name) + "=" + value);
    }
    line.insert(line.begin(), {"--mpirun", mpirun_});
    line.insert(line.end(), {"train", "--epochs", "3"});
    auto made = make_job(test::parsed(line, entries), kSelf, std::move(met));
    if (made) text_ += text_of(*made);
    if (!made) text_ += "  refused: " + made.error() + "\n";
    return made;
  }
  void add(const test::Line& line, const Environment& environment = {}) {
    text_ += fmt::format("{}\n", fmt::join(line, " "));
    job(line, environment);
  }

  static std::string text_of(const Job& job) {
    const JobPlan& plan = job.launcher.plan;
    const Prepare& request = plan.preparation;
    std::string text = "  hosts:";
    for (const JobHost& host : plan.hosts) text += fmt::format(" {}:{}", host.name, host.ranks);
    text += fmt::format("; mpirun on {}; {} ranks, binding {}, threads {}, {} ms to start, in {}\n",
                        plan.launcher_host, request.world_size, request.binding, request.threads,
                        plan.start_timeout.count(), request.folder);
    text += dry_run_text(job);
    EXPECT_EQ(request.program, "train");
    EXPECT_GT(plan.needs.shared_memory, 0U);
    EXPECT_GT(plan.needs.memory, 0U);
    EXPECT_EQ(job.launcher.agents.size(), plan.hosts.size());
    NetworkChoice network;
    network.interfaces = {{"eth0"}, {"ens3"}};
    network.addresses = {*parse_address("10.0.0.1"), *parse_address("10.0.0.2")};
    const Start alone = plan.mpirun(nullptr).value();
    EXPECT_EQ(alone.arguments, job.mpirun.arguments);
    EXPECT_EQ(alone.folder, request.folder);
    text += variables("alone mpirun", alone.environment);
    if (plan.hosts.size() == 2) {
      text += variables("mpirun", plan.mpirun(&network)->environment) +
              variables("the other host", plan.daemon_environment(1, &network));
    }
    if (!plan.network_interfaces.empty()) text += fmt::format("  {}\n", plan.network_interfaces);
    if (job.launcher.verbose) text += "  verbose\n";
    const RankOutputOptions& output = job.launcher.output;
    if (!output.folder.empty())
      text += fmt::format("  output: {} {}\n", output.folder, output.shown);
    for (const std::string& notice : job.notices) text += "  # " + notice + "\n";
    return text;
  }
  /// Those that do not come from the machine.
  static std::string variables(const char* who, const std::vector<std::string>& all) {
    std::string text = fmt::format("  {} gets", who);
    for (const std::string_view name : {"MINE", "HORA_TIMEOUT", "http_proxy", "NCCL_SOCKET_IFNAME",
                                        "GLOO_SOCKET_IFNAME", "FI_TCP_IFACE"}) {
      for (const std::string& each : all) {
        if (each.starts_with(std::string(name) + "=")) text += " " + each;
      }
    }
    return text + "\n";
  }

  internal::test::TemporaryFolder folder_;
  std::string mpirun_ = test::script(folder_, "mpirun", kOpenMpi4Script);
  std::string text_;
};

TEST_F(MakeJob, FollowsEachFlag) {
  const std::string nodes = test::written(folder_, "nodes", "n1\nn1\nn2\n");
  test::script(folder_, "scontrol", "echo n1; echo n2");
  const Environment slurm{{"PATH", folder_.path().string()},
                          {"SLURM_JOB_NODELIST", "n[1-2]"},
                          {"SLURM_JOB_CPUS_PER_NODE", "8(x2)"}};
  const Environment pbs{{"PBS_NODEFILE", nodes}};
  add({"-np", "3"});
  add({"-H", "localhost:1,b:2", "--ssh-port", "22022", "--ssh-identity-file", "/key",
       "--start-timeout", "7"});
  add({"-H", "b:2"});
  add({"--nproc-per-node", "2"});
  add({"-H", "localhost:4,b:4", "--nproc-per-node", "2"});
  add({"--nproc-per-node", "2"}, slurm);
  add({"-np", "3", "--nproc-per-node", "2"}, slurm);
  add({"-np", "5", "--nproc-per-node", "2"}, slurm);
  add({}, pbs);
  add({"--nproc-per-node", "4"}, pbs);
  add({"-H", "localhost:1"}, pbs);
  add({}, {{"PBS_NODEFILE", "/none"}});
  add({"-np", "5", "-H", "localhost:1,b:2", "--oversubscribe"});
  add({"-np", "8", "-H", "localhost:1,b:1", "--oversubscribe"});
  for (const char* ranks : {"4", "7"}) add({"-np", ranks, "-H", "localhost:2,b:3,c:2"});
  add({"-np", "7", "-H", "localhost,b"});
  add({"-np", "7", "-H", "localhost:2,b"});
  add({"--wdir", folder_.path().string()});
  add({"--wdir", "below"});
  add({"-H", "localhost:1,b:1", "-x", "http_proxy", "-x", "MINE=a b", "--timeout", "9"},
      {{"http_proxy", "http://proxy"}, {"HORA_TIMEOUT", "8"}});
  add({"-x", "NOT_SET_ANYWHERE", "-x", "MINE="});
  add({"-H", "localhost:1,b:1", "-x", "NCCL_SOCKET_IFNAME=eth7", "--network-interfaces",
       "eth0,ens3"},
      {{"GLOO_SOCKET_IFNAME", "mine"}});
  add({"--binding", "numa", "-np", "2"});
  add({"-np", "2"}, {{"OMP_NUM_THREADS", "3"}});
  add({"-np", "2", "-x", "OMP_NUM_THREADS=4"}, {{"OMP_NUM_THREADS", "3"}});
  add({"--mpi-args", "--mca btl self", "--tune", "/dev/null"});
  add({"-np", "4", "--output-filename", "/out", "--ranks", "0,2-3", "--verbose", "--no-autotune"});
  NodesMet met;
  for (const auto& [host, ranks] : {std::pair("a", 2), std::pair("b", 2), std::pair("b", 1)}) {
    met.nodes.push_back({host, "", ranks});
  }
  text_ += "nodes that meet\n";
  job({}, {}, std::move(met));
  for (const auto& path : {folder_.path(), folder_.path().lexically_normal()}) {
    text_ = test::with(text_, path, "FOLDER");
  }
  text_ = test::with(text_, std::filesystem::current_path(), "HERE");
  const std::string of_root = "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ";
  test::expect_texts("jobs of command lines", test::with(text_, of_root, ""));
  for (const auto& [flag, is_on] :
       {std::pair("--prefix-output", true), std::pair("--prefix-output=off", false)}) {
    EXPECT_EQ(job({"-np", "4", flag})->launcher.output.prefix, is_on);
  }
}

TEST_F(MakeJob, SaysThatAnMpirunIsNotThere) {
  const LaunchOptions options = test::parsed({"--mpirun", "/no/mpirun", "train"});
  EXPECT_THAT(test::error_of(make_job(options, kSelf)), HasSubstr("--mpirun \"/no/mpirun\""));
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
  const auto text = [&](const std::string& words) {
    return printed({"--check-build", "--mpirun", test::script(folder, "mpirun", words)});
  };
  const std::string hydra = text("echo 'HYDRA build details:\nVersion: 4.0.2'");
  const std::string open_mpi = text(kOpenMpi4Script);
  EXPECT_THAT(hydra, HasSubstr("mpirun (MPICH 4.0.2)"));
  EXPECT_THAT(open_mpi, HasSubstr("mpirun (Open MPI 4.1.4)"));
  const auto is_other = HasSubstr(", which starts other programs: name the mpirun of ");
  const bool built_with_mpich = hydra.find("which starts other") == std::string::npos;
  EXPECT_THAT(built_with_mpich ? open_mpi : hydra, is_other);
  EXPECT_THAT(built_with_mpich ? hydra : open_mpi, Not(is_other));
}

}  // namespace
}  // namespace hora::launch
