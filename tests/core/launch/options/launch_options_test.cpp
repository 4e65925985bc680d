#include "core/launch/options/launch_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/launch/options/parsed.h"

namespace hora::launch {
namespace {

using test::parsed;
using test::refusal;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

TEST(CommandLine, TheIssuesLine) {
  const LaunchOptions options = parsed({"-np", "4", "-H", "a:2,b:2", "./train", "--its-args"});
  EXPECT_EQ(options.action, Action::run);
  EXPECT_EQ(options.np, 4);
  EXPECT_THAT(options.hosts, ElementsAre(HostSlots{"a", 2}, HostSlots{"b", 2}));
  EXPECT_THAT(options.program, ElementsAre("./train", "--its-args"));
  EXPECT_THAT(options.notices, IsEmpty());
}

TEST(CommandLine, FromTheProgramOnNothingIsLookedAt) {
  EXPECT_THAT(parsed({"./train", "-np", "8", "--help", "--"}).program,
              ElementsAre("./train", "-np", "8", "--help", "--"));
  EXPECT_THAT(parsed({"-np", "2", "--", "--odd-name", "-np", "8"}).program,
              ElementsAre("--odd-name", "-np", "8"));
  EXPECT_EQ(parsed({"-np", "2", "./train", "-np", "8"}).np, 2);
}

TEST(CommandLine, ValuesStandAnywhereAfterTheFlag) {
  EXPECT_EQ(parsed({"-np=4", "t"}).np, 4);
  EXPECT_EQ(parsed({"--np=4", "t"}).np, 4);
  EXPECT_EQ(parsed({"--num_proc", "4", "t"}).np, 4);
  EXPECT_EQ(parsed({"-n4", "t"}).np, 4);
  EXPECT_EQ(parsed({"-p22", "t"}).ssh_port, 22);
  EXPECT_THAT(parsed({"--mpi-args", "--mca btl tcp", "t"}).mpi_args,
              ElementsAre("--mca", "btl", "tcp"));
  EXPECT_THAT(parsed({"--mpi-args=", "t"}).mpi_args, IsEmpty());
  EXPECT_THAT(parsed({"-H", "[::1]:2", "t"}).hosts, ElementsAre(HostSlots{"::1", 2}));
}

TEST(CommandLine, TheLastOfSeveralHolds) {
  EXPECT_EQ(parsed({"-np", "4", "--num-proc", "2", "t"}).np, 2);
  EXPECT_THAT(parsed({"--fusion-threshold-mb", "32", "--fusion-threshold", "1MiB", "t"}).settings,
              ElementsAre(SettingAssignment{"HORA_FUSION_THRESHOLD", "1MiB"}));
  EXPECT_THAT(parsed({"--fusion-threshold", "1MiB", "--fusion-threshold-mb", "32", "t"}).settings,
              ElementsAre(SettingAssignment{"HORA_FUSION_THRESHOLD", "32MiB"}));
}

TEST(CommandLine, ErrorsSayFlagValueAndWhatIsExpected) {
  EXPECT_EQ(refusal({"-np", "four", "t"}), "-np \"four\": expected a whole number from 1 to 65536");
  EXPECT_THAT(refusal({"-np"}), StartsWith("-np: the value is missing"));
  EXPECT_THAT(refusal({"--mca", "btl"}), StartsWith("--mca: the value is missing"));
  EXPECT_THAT(refusal({"--hostsfile", "x", "t"}),
              AllOf(StartsWith("--hostsfile: "), HasSubstr("did you mean --hostfile?")));
  EXPECT_THAT(refusal({"--verbose=yes", "t"}), HasSubstr("takes no value"));
  EXPECT_THAT(refusal({"-H", "a:2", "-np", "3", "t"}), HasSubstr("a has 2, together 2"));
  EXPECT_THAT(refusal({}), HasSubstr("no program is given"));
}

TEST(CommandLine, ASecondProgramIsRefused) {
  EXPECT_THAT(refusal({"-np", "1", "./a", ":", "-np", "1", "./b"}), HasSubstr("has one program"));
}

TEST(CommandLine, ParametersOfMpirunsSshAreHorarunsOwn) {
  const LaunchOptions options =
      parsed({"--mca", "plm_rsh_args", "-p 2222", "--prtemca", "plm_ssh_no_tree_spawn", "1", "t"});
  EXPECT_THAT(options.mpi_args, IsEmpty());
  EXPECT_EQ(options.ssh_port, 2222);
  EXPECT_THAT(options.notices, ElementsAre(HasSubstr("--ssh-port 2222"),
                                           HasSubstr("no_tree_spawn changes nothing")));
  for (const char* wrong : {"-p 1 -v", "-p", "-p 0", "", "'"}) {
    EXPECT_THAT(refusal({"--mca", "plm_rsh_args", wrong, "t"}), HasSubstr("--ssh-port")) << wrong;
  }
}

TEST(CommandLine, FilesOfParametersAreThere) {
  EXPECT_THAT(refusal({"--tune", "/dev/null,/none", "t"}),
              HasSubstr("the file \"/none\" cannot be opened: No such file"));
  EXPECT_THAT(parsed({"--tune", "/dev/null", "t"}).mpi_args, ElementsAre("--tune", "/dev/null"));
}

TEST(CommandLine, VIsTheVersionAloneAndVerboseBeforeAProgram) {
  EXPECT_EQ(parsed({"-v"}).action, Action::version);
  const LaunchOptions options = parsed({"-np", "2", "-v", "t"});
  EXPECT_EQ(options.action, Action::run);
  EXPECT_TRUE(options.verbose);
}

TEST(CommandLine, NamesOfPairsHaveNoSpaces) {
  EXPECT_THAT(parsed({"--mca", "btl_base", "-p 1 -v", "t"}).mpi_args,
              ElementsAre("--mca", "btl_base", "-p 1 -v"));
  EXPECT_THAT(refusal({"--mca", "plm rsh", "args", "t"}), HasSubstr("a name without spaces"));
}

TEST(CommandLine, LongListsAreQuick) {
  std::string ranks = "0-65535";
  for (int i = 0; i < 16000; ++i) ranks += ",0-65535";
  EXPECT_EQ(parsed({"--ranks", ranks, "t"}).shown_ranks.size(), 65536u);
  std::string interfaces = "e0";
  for (int i = 1; i < 20000; ++i) interfaces += ",e" + std::to_string(i);
  EXPECT_THAT(refusal({"--network-interfaces", interfaces, "t"}), HasSubstr("more than 64"));
}

TEST(CommandLine, InterfacesAreNamesWithoutRepetition) {
  EXPECT_THAT(parsed({"--network-interfaces", "eth0, ib0", "--network-interface", "eth0", "t"})
                  .network_interfaces,
              ElementsAre("eth0", "ib0"));
  for (const char* wrong : {"", "-e", "eth0,", "a b", "averyveryverylongname", "e;f"}) {
    EXPECT_THAT(refusal({"--network-interfaces", wrong, "t"}), HasSubstr("network interface"));
  }
}

TEST(CommandLine, TogglesAreOnOffOrAutomatic) {
  EXPECT_EQ(parsed({"t"}).prefix_output, Switch::automatic);
  EXPECT_EQ(parsed({"--prefix-output", "t"}).prefix_output, Switch::on);
  EXPECT_EQ(parsed({"--prefix-output=off", "t"}).prefix_output, Switch::off);
  EXPECT_EQ(parsed({"--no-prefix-output", "t"}).prefix_output, Switch::off);
  EXPECT_EQ(parsed({"--prefix-output", "off", "t"}).prefix_output, Switch::off);
  EXPECT_THAT(parsed({"--prefix-output", "off", "t"}).program, ElementsAre("t"));
  EXPECT_THAT(parsed({"--no-prefix-output", "off"}).program, ElementsAre("off"));
  EXPECT_EQ(parsed({"--prefix-output=auto", "t"}).prefix_output, Switch::automatic);
  EXPECT_THAT(refusal({"--prefix-output=maybe", "t"}), HasSubstr("on, off or auto"));
}

TEST(CommandLine, SettingsThatAreOnOrOffNeedNoValue) {
  const auto setting = [](test::Line line, const std::string& variable) {
    line.insert(line.end(), {"./train", "on"});
    const LaunchOptions options = parsed(line);
    EXPECT_THAT(options.program, ElementsAre("./train", "on"));
    EXPECT_THAT(options.settings, testing::SizeIs(1));
    EXPECT_EQ(options.settings.front().variable, variable);
    return options.settings.front().value;
  };
  EXPECT_EQ(setting({"--report"}, "HORA_REPORT"), "on");
  EXPECT_EQ(setting({"--report", "on"}, "HORA_REPORT"), "on");
  EXPECT_EQ(setting({"--report", "off"}, "HORA_REPORT"), "off");
  EXPECT_EQ(setting({"--report=off"}, "HORA_REPORT"), "off");
  EXPECT_EQ(setting({"--no-report"}, "HORA_REPORT"), "off");
  EXPECT_EQ(setting({"--no-cuda"}, "HORA_CUDA"), "off");
  EXPECT_EQ(setting({"--no-malloc-tuning"}, "HORA_MALLOC_TUNING"), "off");
  EXPECT_EQ(setting({"--tensor-arena"}, "HORA_TENSOR_ARENA"), "on");
  EXPECT_EQ(setting({"--tensor-arena", "auto"}, "HORA_TENSOR_ARENA"), "auto");
  EXPECT_EQ(setting({"--log-level", "off"}, "HORA_LOG_LEVEL"), "off");
  EXPECT_THAT(parsed({"--report", "./on"}).program, ElementsAre("./on"));
  EXPECT_THAT(parsed({"--report", "--", "on"}).program, ElementsAre("on"));
  EXPECT_THAT(refusal({"--report=maybe", "t"}), HasSubstr("allowed: off or on"));
  EXPECT_THAT(refusal({"--report=auto", "t"}), HasSubstr("allowed: off or on"));
}

TEST(CommandLine, TheRestOfTheOptions) {
  const LaunchOptions options =
      parsed({"-i", "key", "--binding", "numa", "--start-timeout", "5s", "--token-file", "token",
              "--output-filename", "out", "--dry-run", "--allow-run-as-root", "--oversubscribe",
              "--mpi-args", "-a 'b c'", "--mpi-args", "-d", "t"});
  EXPECT_EQ(options.ssh_identity_file, "key");
  EXPECT_EQ(options.binding, Binding::numa);
  EXPECT_EQ(options.start_timeout, std::chrono::seconds(5));
  EXPECT_EQ(options.token_file, "token");
  EXPECT_EQ(options.output_folder, "out");
  EXPECT_TRUE(options.dry_run && options.allow_run_as_root && options.oversubscribe);
  EXPECT_THAT(options.mpi_args, ElementsAre("-a", "b c", "-d"));
  EXPECT_THAT(refusal({"--output-filename", "", "t"}), HasSubstr("empty"));
  EXPECT_THAT(refusal({"--start-timeout", "0", "t"}), HasSubstr("seconds"));
  EXPECT_THAT(refusal({"--binding", "socket", "t"}), HasSubstr("auto, none, core or numa"));
  EXPECT_THAT(refusal({"-p", "0", "t"}), HasSubstr("1 to 65535"));
}

TEST(CommandLine, ValuesOfVariablesAreNotPrinted) {
  EXPECT_THAT(refusal({"-x", "1a=secret", "t"}), Not(HasSubstr("secret")));
  EXPECT_THAT(refusal({"-x", "HORA_TIMEOUT=secret", "t"}), Not(HasSubstr("secret")));
  EXPECT_THAT(refusal({"-genv", "1a", "secret", "t"}), Not(HasSubstr("secret")));
}

TEST(Complete, RanksFollowFromHosts) {
  EXPECT_EQ(parsed({"-H", "a:2,b:3", "t"}).np, 5);
  EXPECT_EQ(parsed({"-H", "a,b", "--nproc-per-node", "4", "t"}).np, 8);
  EXPECT_EQ(parsed({"--nproc-per-node", "4", "t"}).np, 4);
  EXPECT_EQ(parsed({"t"}).np, std::nullopt);
}

TEST(Complete, RanksPerHostLimitTheHosts) {
  const LaunchOptions options = parsed({"-H", "a:8,b:8", "-npernode", "2", "-np", "3", "t"});
  EXPECT_THAT(*lay_out_ranks(options.hosts, *options.np, false),
              ElementsAre(HostRanks{"a", 0, 2}, HostRanks{"b", 2, 1}));
  EXPECT_THAT(refusal({"-H", "a:8,b:8", "-npernode", "2", "-np", "5", "t"}),
              HasSubstr("together 4"));
  EXPECT_THAT(refusal({"-H", "a:1,b:8", "-npernode", "2", "t"}),
              AllOf(HasSubstr("host a has 1 slots"), HasSubstr("--oversubscribe")));
  EXPECT_THAT(refusal({"-npernode", "2", "-np", "4", "t"}), HasSubstr("name the hosts by -H"));
  EXPECT_THAT(refusal({"-H", "a,b", "-npernode", "65536", "t"}), HasSubstr("more than 65536"));
}

/// Whose hosts are known at the start only.
TEST(Complete, RanksPerHostHoldForEachHostOfAnAllocation) {
  const test::Line environment{"SLURM_JOB_NODELIST=n[1-2]"};
  EXPECT_EQ(parsed({"--nproc-per-node", "2", "t"}, environment).np, std::nullopt);
  EXPECT_EQ(parsed({"--nproc-per-node", "2", "-np", "4", "t"}, environment).np, 4);
  EXPECT_EQ(parsed({"--nproc-per-node", "2", "t"}, {"SLURM_JOB_NODELIST="}).np, 2);
}

TEST(Complete, RanksFollowFromNodes) {
  const test::Line meeting{"--rendezvous", "tcp://a:1", "--nnodes", "2"};
  const auto with = [&](test::Line more) {
    test::Line line = meeting;
    line.insert(line.end(), more.begin(), more.end());
    line.emplace_back("t");
    return line;
  };
  EXPECT_EQ(parsed(with({"--nproc-per-node", "4"})).np, 8);
  EXPECT_EQ(parsed(with({})).np, 2);
  EXPECT_EQ(parsed(with({"-np", "6"})).ranks_per_host, 3);
  EXPECT_THAT(refusal(with({"-np", "5"})), HasSubstr("shared evenly"));
  EXPECT_THAT(refusal(with({"-np", "5", "--nproc-per-node", "2"})), HasSubstr("are 4 ranks"));
  EXPECT_THAT(refusal(with({"--nproc-per-node", "65536"})), HasSubstr("at most 65536"));
  EXPECT_THAT(refusal(with({"--node-rank", "2"})), StartsWith("--node-rank \"2\": there are 2"));
  EXPECT_THAT(refusal(with({"-H", "a:2"})), HasSubstr("give one of them"));
}

TEST(Complete, SeveralNodesNeedAPlaceToMeet) {
  EXPECT_THAT(refusal({"--nnodes", "2", "t"}), HasSubstr("add --rendezvous"));
  EXPECT_THAT(refusal({"--nnodes", "2", "--master-port", "1", "t"}), HasSubstr("add --rendezvous"));
  EXPECT_THAT(refusal({"--nnodes", "2", "--rdzv-endpoint", "a:0", "t"}), HasSubstr("need a port"));
  EXPECT_EQ(parsed({"--rendezvous", "file:///shared", "t"}).rendezvous, std::nullopt) << "one node";
}

TEST(Complete, JobsThatMeetInOneFolderHaveIds) {
  EXPECT_EQ(parsed({"t"}).rendezvous_id, "job");
  EXPECT_EQ(parsed({"--rendezvous-id", "a-7.x_", "t"}).rendezvous_id, "a-7.x_");
  EXPECT_EQ(parsed({"--rdzv_id=100", "t"}).rendezvous_id, "100");
  for (const std::string& wrong : {std::string("../a"), std::string("a b"), std::string(65, 'a')}) {
    EXPECT_THAT(refusal({"--rdzv-id", wrong, "t"}), HasSubstr("up to 64 letters")) << wrong;
  }
}

TEST(Complete, HalvesOfAnEndpointAreJoinedInAnyOrder) {
  const test::Line tail{"--nnodes", "2", "t"};
  const auto url = [&](test::Line line) {
    line.insert(line.end(), tail.begin(), tail.end());
    return to_url(parsed(line).rendezvous.value());
  };
  EXPECT_EQ(url({"--master-addr", "a", "--master-port", "7"}), "tcp://a:7");
  EXPECT_EQ(url({"--master-port", "7", "--master-addr", "a"}), "tcp://a:7");
  EXPECT_EQ(url({"--master-addr", "a"}), "tcp://a:29500");
}

TEST(Complete, TheEnvironmentSaysWhereNodesMeetIfNothingElseDoes) {
  const test::Line environment{"MASTER_ADDR=a", "MASTER_PORT=7", "WORLD_SIZE=2", "RANK=1"};
  const LaunchOptions options = parsed({"--nproc-per-node", "3", "t"}, environment);
  EXPECT_EQ(to_url(options.rendezvous.value()), "tcp://a:7");
  EXPECT_EQ(options.nnodes, 2);
  EXPECT_EQ(options.node_rank, 1);
  EXPECT_EQ(options.np, 6);
  EXPECT_EQ(parsed({"-H", "b:2", "t"}, environment).rendezvous, std::nullopt);
  EXPECT_THAT(refusal({"t"}, {"MASTER_ADDR=a", "WORLD_SIZE=2", "RANK=2"}),
              StartsWith("environment: RANK"));
}

TEST(Complete, MasterAddressIsTheDefaultOfTheRendezvous) {
  const test::Line environment{"MASTER_ADDR=a", "MASTER_PORT=7"};
  const LaunchOptions options =
      parsed({"--nnodes", "2", "--node-rank", "0", "-np", "4", "t"}, environment);
  EXPECT_EQ(to_url(options.rendezvous.value()), "tcp://a:7");
  EXPECT_EQ(options.ranks_per_host, 2);
  EXPECT_THAT(options.notices, IsEmpty());
  EXPECT_EQ(
      to_url(*parsed({"--nnodes", "2", "--rendezvous", "tcp://b:8", "t"}, environment).rendezvous),
      "tcp://b:8");
  EXPECT_THAT(refusal({"--nnodes", "2", "t"}, {"MASTER_ADDR=a", "MASTER_PORT=x"}),
              HasSubstr("MASTER_PORT"));
}

TEST(Complete, AMasterAddressThatIsNotUsedIsSaid) {
  using Environment = test::Line;
  const auto notices = [](const test::Line& line, const Environment& environment) {
    const LaunchOptions options = parsed(line, environment);
    EXPECT_EQ(options.rendezvous, std::nullopt);
    return options.notices;
  };
  const auto is_said = ElementsAre(HasSubstr("MASTER_ADDR is not used"));
  EXPECT_THAT(notices({"-np", "4", "t"}, {"MASTER_ADDR=a"}), is_said);
  EXPECT_THAT(notices({"t"}, {"MASTER_ADDR=a", "MASTER_PORT=7"}), is_said);
  EXPECT_THAT(notices({"-np", "4", "t"}, {"MASTER_ADDR=a", "WORLD_SIZE=2", "RANK=1"}), is_said);
  EXPECT_THAT(notices({"-np", "4", "t"}, {"MASTER_ADDR=a", "WORLD_SIZE=1", "RANK=0"}), IsEmpty());
  EXPECT_THAT(notices({"t"}, {"MASTER_ADDR=a", "WORLD_SIZE=1", "RANK=0"}), IsEmpty());
  EXPECT_THAT(notices({"-np", "4", "t"}, {"MASTER_ADDR=a", "SLURM_JOB_NODELIST=n[1-2]"}),
              IsEmpty());
  EXPECT_THAT(notices({"-H", "b:2", "t"}, {"MASTER_ADDR=a"}), IsEmpty());
}

TEST(Complete, ShownRanksAreRanksOfTheJob) {
  EXPECT_THAT(parsed({"-np", "4", "--ranks", "3,0-1", "t"}).shown_ranks, ElementsAre(0, 1, 3));
  EXPECT_THAT(refusal({"-np", "4", "--ranks", "4", "t"}), HasSubstr("are 0 to 3"));
  for (const char* wrong : {"", "a", "3-1", "-1", "1,,2", "0-65536"}) {
    EXPECT_THAT(refusal({"--ranks", wrong, "t"}), HasSubstr("0-3,8")) << wrong;
  }
}

TEST(Complete, VariablesHaveAnyName) {
  EXPECT_THAT(
      parsed({"-x", "http_proxy", "-x", "_a1=2", "t"}).variables,
      ElementsAre(ForwardedVariable{"http_proxy", std::nullopt}, ForwardedVariable{"_a1", "2"}));
  for (const char* wrong : {"", "1a", "a-b", "a b=1", "a;b", "=1"}) {
    EXPECT_THAT(refusal({"-x", wrong, "t"}), HasSubstr("letters, digits and underscores")) << wrong;
  }
  EXPECT_THAT(refusal({"-x", "HORARUN_TOKEN=secret", "t"}),
              AllOf(HasSubstr("horarun's own"), testing::Not(HasSubstr("secret"))));
}

TEST(Complete, AFlagWinsOverItsVariable) {
  EXPECT_THAT(refusal({"t"}, {"HORA_TIMEOUT=soon"}), StartsWith("environment: HORA_TIMEOUT="));
  EXPECT_EQ(parsed({"--timeout", "9", "t"}, {"HORA_TIMEOUT=soon"}).settings.size(), 1u);
  EXPECT_THAT(refusal({"t"}, {"HORA_TIMOUT=1"}), HasSubstr("did you mean HORA_TIMEOUT"));
  EXPECT_THAT(parsed({"-x", "HORA_TIMEOUT=9", "--ranks-per-node", "2", "t"}).settings,
              ElementsAre(SettingAssignment{"HORA_TIMEOUT", "9"},
                          SettingAssignment{"HORA_RANKS_PER_NODE", "2"}));
}

TEST(Complete, WithoutAProgramThereIsNothingToRun) {
  EXPECT_THAT(refusal({"-np", "4"}), HasSubstr("no program is given"));
  EXPECT_EQ(parsed({"--diagnose", "/d"}).action, Action::diagnose);
  EXPECT_EQ(parsed({"--diagnose", "/d"}).diagnose_folder, "/d");
  EXPECT_EQ(parsed({"-np", "nonsense", "--help"}).action, Action::help);
  EXPECT_EQ(parsed({"--completion", "bash"}).action, Action::completion);
  EXPECT_THAT(refusal({"--completion", "fish"}), HasSubstr("expected bash"));
  const LaunchOptions check = parsed({"--check-build", "--mpirun", "/m", "-np", "nonsense"});
  EXPECT_EQ(check.action, Action::check_build);
  EXPECT_EQ(check.mpirun, "/m");
}

}  // namespace
}  // namespace hora::launch
