#include "core/launch/options/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/launch/options/parsed.h"

namespace hora::launch {
namespace {

using internal::test::TemporaryFolder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

/// Options of a config file, with more arguments before the program.
LaunchOptions configured(std::string_view text, test::Line more = {}) {
  const TemporaryFolder folder;
  test::Line line{"--config-file", test::written(folder, "job.yaml", text)};
  line.insert(line.end(), more.begin(), more.end());
  line.emplace_back("./train");
  return test::parsed(line);
}

/// The message of the error, without the folder.
std::string config_refusal(std::string_view text) {
  const auto occurrences = parse_config(text, "job.yaml");
  if (!occurrences) return to_text(occurrences.error());
  const TemporaryFolder folder;
  const std::string path = test::written(folder, "job.yaml", text);
  std::string message = test::refusal({"--config-file", path, "./train"});
  if (const std::size_t place = message.find(path); place != message.npos) {
    message.replace(place, path.size(), "job.yaml");
  }
  return message;
}

TEST(ConfigFile, HasTheNamesOfFlags) {
  const LaunchOptions options = configured(
      "# a job\n"
      "np: 4\n"
      "hosts: [a:2, b:2]\n"
      "ssh_port: 2222\n"
      "fusion-threshold: 32MiB\n"
      "stall_warning: 5\n"
      "prefix-output: off\n"
      "verbose: true\n"
      "dry-run: false\n"
      "x: [PATH, NCCL_DEBUG=INFO]\n"
      "mpi-args: --mca btl 'self,tcp'\n"
      "ranks: [0, 3]\n"
      "report: on\n"
      "cuda: false\n");
  EXPECT_EQ(options.np, 4);
  EXPECT_THAT(options.hosts, ElementsAre(HostSlots{"a", 2}, HostSlots{"b", 2}));
  EXPECT_EQ(options.ssh_port, 2222);
  EXPECT_THAT(options.settings, ElementsAre(SettingAssignment{"HORA_FUSION_THRESHOLD", "32MiB"},
                                            SettingAssignment{"HORA_STALL_WARNING", "5"},
                                            SettingAssignment{"HORA_REPORT", "on"},
                                            SettingAssignment{"HORA_CUDA", "off"}));
  EXPECT_EQ(options.prefix_output, Switch::off);
  EXPECT_TRUE(options.verbose);
  EXPECT_FALSE(options.dry_run);
  EXPECT_THAT(options.variables, ElementsAre(ForwardedVariable{"PATH", std::nullopt},
                                             ForwardedVariable{"NCCL_DEBUG", "INFO"}));
  EXPECT_THAT(options.mpi_args, ElementsAre("--mca", "btl", "self,tcp"));
  EXPECT_THAT(options.shown_ranks, ElementsAre(0, 3));
}

TEST(ConfigFile, MayBeJson) {
  const LaunchOptions options = configured(
      "{\n\t\"np\": 4,\n\t\"hosts\": [\"a:2\", \"b:2\"],\n\t\"verbose\": true,\n"
      "\t\"timeline\": \"/tmp/a\\u00e4.json\"\n}\n");
  EXPECT_EQ(options.np, 4);
  EXPECT_TRUE(options.verbose);
  EXPECT_THAT(options.settings,
              ElementsAre(SettingAssignment{"HORA_TIMELINE", "/tmp/a\xc3\xa4.json"}));
}

TEST(ConfigFile, MayBeEmpty) {
  EXPECT_THAT(*parse_config("", "f"), IsEmpty());
  EXPECT_THAT(*parse_config("# nothing\n", "f"), IsEmpty());
  EXPECT_THAT(*parse_config("{}", "f"), IsEmpty());
}

TEST(ConfigFile, GivesWayToTheCommandLineWhereverThatSaysIt) {
  EXPECT_EQ(configured("np: 4", {"-np", "2"}).np, 2);
  const TemporaryFolder folder;
  const std::string path = test::written(folder, "job.yaml", "np: 4\nnproc-per-node: 4\n");
  EXPECT_EQ(test::parsed({"-np", "2", "--config-file", path, "t"}).np, 2);
  EXPECT_THAT(configured("hostfile: /nowhere", {"-H", "a:2"}).hosts, ElementsAre(HostSlots{"a", 2}))
      << "rows that set the same";
  EXPECT_THAT(configured("fusion_threshold_mb: 7", {"--fusion-threshold", "1MiB"}).settings,
              ElementsAre(SettingAssignment{"HORA_FUSION_THRESHOLD", "1MiB"}));
  EXPECT_THAT(configured("network-interfaces: [eth0, eth1]", {"--network-interfaces", "ib0"})
                  .network_interfaces,
              ElementsAre("ib0"));
  EXPECT_THAT(configured("x: [A=1, B]", {"-x", "A=2", "-x", "C"}).variables,
              ElementsAre(ForwardedVariable{"B", std::nullopt}, ForwardedVariable{"A", "2"},
                          ForwardedVariable{"C", std::nullopt}))
      << "variables stay beside each other";
}

TEST(ConfigFile, UnknownKeysAreErrorsWithTheNearest) {
  EXPECT_EQ(config_refusal("np: 4\nfusion-treshold: 1\n"),
            "job.yaml:2: fusion-treshold: there is no flag of this name; did you mean "
            "fusion-threshold?");
  EXPECT_THAT(config_refusal("zzzzzzzzzzzz: 1"), Not(HasSubstr("did you mean")));
}

TEST(ConfigFile, KeysThatAreGivenTwiceAreErrors) {
  EXPECT_EQ(config_refusal("np: 4\nverbose: true\nnp: 2\n"),
            "job.yaml:3: np: line 1 sets the same by np");
  EXPECT_THAT(config_refusal("ssh-port: 4\nssh_port: 4\n"),
              StartsWith("job.yaml:2: ssh_port: line 1"));
  EXPECT_THAT(config_refusal("np: 4\nnum-proc: 4\n"), StartsWith("job.yaml:2: num-proc: line 1"));
  EXPECT_THAT(config_refusal("fusion-threshold: 1\nfusion-threshold-mb: 1\n"), HasSubstr("line 1"));
  EXPECT_THAT(config_refusal("hosts: a\nhostfile: b\n"), HasSubstr("exclude each other"));
}

TEST(ConfigFile, ValuesAreCheckedAsOnTheCommandLine) {
  EXPECT_EQ(config_refusal("\nnp: four\n"),
            "job.yaml:2: np \"four\": expected a whole number from 1 to 65536");
  EXPECT_THAT(config_refusal("verbose: loud"), HasSubstr("expected true or false"));
  EXPECT_THAT(config_refusal("np: [1, 2]"), HasSubstr("expected one value"));
  EXPECT_THAT(config_refusal("np:\n"), HasSubstr("the value of \"np\" is missing"));
  EXPECT_THAT(config_refusal("np: null\n"), HasSubstr("the value of \"np\" is missing"));
  EXPECT_THAT(config_refusal("mca: btl"), HasSubstr("with a space between them"));
  EXPECT_THAT(config_refusal("x: ['1a=secret']"), Not(HasSubstr("secret")));
  EXPECT_THAT(config_refusal("np: \"4\\0\""), HasSubstr("NUL"));
  EXPECT_THAT(config_refusal("min-np: 2"), AllOf(StartsWith("job.yaml:1: min-np: not supported")));
  for (const char* key : {"config-file", "help", "version", "check-build", "diagnose"}) {
    EXPECT_THAT(config_refusal(std::string(key) + ": x"), HasSubstr("belongs on the command line"));
  }
}

TEST(ConfigFile, OtherShapesAreErrors) {
  EXPECT_THAT(config_refusal("params:\n  fusion_threshold_mb: 32\n"),
              AllOf(StartsWith("job.yaml:2: "), HasSubstr("no sections")));
  EXPECT_THAT(config_refusal("- np\n"), HasSubstr("does not belong here"));
  EXPECT_THAT(config_refusal("np 4\n"), HasSubstr("expected a map"));
  EXPECT_THAT(config_refusal("hosts: [[a]]"), HasSubstr("a list does not belong here"));
  EXPECT_THAT(config_refusal("? [np]\n: 4\n"), HasSubstr("does not belong here"));
  EXPECT_THAT(config_refusal("np: 4\n---\nnp: 4\n"), HasSubstr("second document"));
  EXPECT_THAT(config_refusal("np: !!int 4\n"), HasSubstr("tags"));
  EXPECT_THAT(config_refusal("np: ]\n"), HasSubstr("neither YAML nor JSON"));
  EXPECT_THAT(config_refusal("np: a: b\n"), HasSubstr("neither YAML nor JSON"));
}

TEST(ConfigFile, BombsAreRefused) {
  EXPECT_THAT(config_refusal("a: &a [x, x]\nb: &b [*a, *a]\n"), HasSubstr("anchors and aliases"));
  EXPECT_THAT(config_refusal("np: &a 4\n"), HasSubstr("anchors and aliases"));
  EXPECT_THAT(config_refusal("np: *a\n"), Not(IsEmpty()));
  EXPECT_THAT(config_refusal(std::string(60000, '[')), Not(IsEmpty()));
  EXPECT_THAT(config_refusal("np: " + std::string(60000, '{')), Not(IsEmpty()));
  std::string deep;
  for (int i = 0; i < 250; ++i) deep += std::string(static_cast<std::size_t>(i), ' ') + "a:\n";
  EXPECT_THAT(config_refusal(deep), Not(IsEmpty()));
  EXPECT_THAT(config_refusal("# " + std::string(kLargestConfigFile, 'x')),
              HasSubstr("larger than 65536"));
}

TEST(ConfigFile, MustBeThere) {
  EXPECT_THAT(test::refusal({"--config-file", "/nowhere/job.yaml", "t"}),
              AllOf(StartsWith("--config-file \"/nowhere/job.yaml\": cannot be opened")));
  EXPECT_THAT(test::refusal({"--config-file", "/", "t"}), HasSubstr("cannot be read"));
  EXPECT_THAT(test::refusal({"--config-file", "/dev/zero", "t"}), HasSubstr("is larger than"));
}

}  // namespace
}  // namespace hora::launch
