#include "core/launch/options/command_line.h"

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

TEST(CommandLine, ASecondProgramIsNoticed) {
  EXPECT_THAT(parsed({"-np", "1", "./a", ":", "-np", "1", "./b"}).notices,
              ElementsAre(HasSubstr("one program")));
}

TEST(CommandLine, NamesOfPairsHaveNoSpaces) {
  EXPECT_THAT(parsed({"--mca", "plm_rsh_args", "-p 1 -v", "t"}).mpi_args,
              ElementsAre("--mca", "plm_rsh_args", "-p 1 -v"));
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

}  // namespace
}  // namespace hora::launch
