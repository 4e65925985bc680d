#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <vector>

#include "core/launch/supervisor/supervisor.h"

namespace hora::launch {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr RankNeeds kNeeds{.shared_memory = 8 * kMiB, .memory = 32 * kMiB};

/// A host that has enough of everything.
PreparedHost host(const std::string& name, int ranks = 2) {
  PreparedHost host{.name = name,
                    .ranks = ranks,
                    .version = HORA_VERSION,
                    .architecture = "x86_64",
                    .answer = {}};
  host.answer.cores = "2 ranks on 4 cores";
  host.answer.memory = 1000 * kMiB;
  host.answer.shared_memory = 1000 * kMiB;
  return host;
}

/// With a clock that is `seconds` ahead of the launcher's; asked and answered then.
PreparedHost at(const std::string& name, double seconds, int asked, int answered) {
  PreparedHost result = host(name);
  result.asked = milliseconds(asked);
  result.answered = milliseconds(answered);
  const double read = (asked + answered) / 2e3;
  result.answer.clock_ns =
      1'700'000'000'000'000'000 + static_cast<std::int64_t>((read + seconds) * 1e9);
  return result;
}

std::vector<std::string> problems(const std::vector<PreparedHost>& hosts) {
  return problems_of(hosts, kNeeds);
}

TEST(ProblemsOfHosts, AreNoneWhereAllIsThere) {
  EXPECT_THAT(problems({host("a"), host("b")}), IsEmpty());
  EXPECT_THAT(problems({}), IsEmpty());
}

TEST(ProblemsOfHosts, AreAllThatTheirAgentsHaveFound) {
  PreparedHost b = host("b");
  b.answer.problems = {"no program", "no folder"};
  EXPECT_THAT(problems({host("a"), b}), ElementsAre("host b: no program", "host b: no folder"));
}

TEST(ProblemsOfHosts, AnotherVersionAloneIsSaid) {
  PreparedHost b = host("b");
  b.version = "0.0.1";
  b.answer = {};
  EXPECT_THAT(
      problems({host("a"), b}),
      ElementsAre(AllOf(StartsWith("host b: it has hora 0.0.1, this host has " HORA_VERSION),
                        HasSubstr("install the same version"))));
}

TEST(ProblemsOfHosts, OtherProcessors) {
  PreparedHost b = host("b");
  b.architecture = "aarch64";
  EXPECT_THAT(problems({host("a"), b}),
              ElementsAre(HasSubstr("host b: its processors are aarch64, those of host a are "
                                    "x86_64")));
}

TEST(ProblemsOfHosts, TooLittleSharedMemorySaysFoundNeededAndWhatToDo) {
  PreparedHost b = host("b", 4);
  b.answer.shared_memory = 32 * kMiB;
  EXPECT_THAT(problems({b}), IsEmpty());
  b.answer.shared_memory -= 1;
  EXPECT_THAT(problems({host("a"), b}),
              ElementsAre(AllOf(HasSubstr("host b: /dev/shm has 31 MiB left"),
                                HasSubstr("its 4 ranks need 32 MiB"), HasSubstr("--shm-size"))));
}

TEST(ProblemsOfHosts, TooLittleMemorySaysFoundNeededAndWhatToDo) {
  PreparedHost b = host("b", 1);
  b.answer.memory = 32 * kMiB;
  EXPECT_THAT(problems({b}), IsEmpty());
  b.answer.memory -= 1;
  EXPECT_THAT(problems({b}), ElementsAre(AllOf(HasSubstr("host b: 31 MiB of memory are available"),
                                               HasSubstr("its rank needs 32 MiB"),
                                               HasSubstr("start fewer ranks on it"))));
  b.answer.memory = 0;
  EXPECT_THAT(problems({b}), IsEmpty()) << "unknown";
}

TEST(ProblemsOfHosts, AHostWithoutRanksNeedsNothing) {
  PreparedHost a = host("a", 0);
  a.answer.shared_memory = 0;
  a.answer.memory = 1;
  EXPECT_THAT(problems({a, host("b")}), IsEmpty());
}

TEST(ClockWarning, NamesTheHostsAndTheDifferences) {
  const auto warning = clock_warning(std::vector{at("a", 0, 0, 20), at("b", 2.5, 100, 120),
                                                 at("c", -0.7, 5, 45), at("d", 0.1, 0, 10)});
  ASSERT_TRUE(warning);
  EXPECT_THAT(*warning,
              AllOf(HasSubstr("compared with host a, that of host b is 2.5 s ahead, that of host c "
                              "is 0.7 s behind (known to within 0.03 s)"),
                    Not(HasSubstr("host d")), HasSubstr("NTP")));
}

TEST(ClockWarning, AllowsASecond) {
  EXPECT_FALSE(clock_warning(std::vector{at("a", 0, 0, 2), at("b", 1.0, 0, 2)}));
  EXPECT_TRUE(clock_warning(std::vector{at("a", 0, 0, 2), at("b", 1.1, 0, 2)}));
  EXPECT_TRUE(clock_warning(std::vector{at("a", 0, 0, 2), at("b", -1.1, 0, 2)}));
  EXPECT_TRUE(clock_warning(std::vector{at("a", 0, 0, 2), at("b", 0.6, 0, 2), at("c", -0.6, 0, 2)}))
      << "of two others";
  EXPECT_FALSE(clock_warning({}));
}

/// A clock is read at some time between the question and the answer.
TEST(ClockWarning, AllowsForTheRoundTrip) {
  EXPECT_FALSE(clock_warning(std::vector{at("a", 0, 0, 2), at("b", 1.5, 0, 1200)}));
  EXPECT_TRUE(clock_warning(std::vector{at("a", 0, 0, 2), at("b", 1.5, 0, 800)}));
  EXPECT_FALSE(clock_warning(std::vector{at("a", 0, 0, 800), at("b", 1.5, 0, 800)}));
}

TEST(ClockWarning, NamesOnlySomeOfManyHosts) {
  std::vector<PreparedHost> hosts{at("a", 0, 0, 2)};
  for (int i = 0; i < 100; ++i) hosts.push_back(at("b" + std::to_string(i), 5 + i, 0, 2));
  EXPECT_THAT(clock_warning(hosts).value_or(""),
              AllOf(HasSubstr("host b99 is 104.0 s ahead"), HasSubstr(", 92 more (")));
}

TEST(CoresLine, SaysTheSameOnce) {
  EXPECT_EQ(cores_line(std::vector{host("a")}), "cores: 2 ranks on 4 cores");
  EXPECT_EQ(cores_line(std::vector{host("a"), host("b")}),
            "cores: on each of 2 hosts 2 ranks on 4 cores");
  PreparedHost c = host("c", 1);
  c.answer.cores = "1 rank on 8 cores";
  EXPECT_EQ(cores_line(std::vector{host("a"), c, host("b")}),
            "cores: a, b: 2 ranks on 4 cores; c: 1 rank on 8 cores");
  EXPECT_EQ(cores_line(std::vector{host("a", 0), c}), "cores: 1 rank on 8 cores")
      << "a host without ranks";
}

const std::vector<std::string> kSsh{"ssh",    "-p", "22022", "b", "--", "/opt/my hora/horarun",
                                    "--agent"};
const std::vector<std::string> kSrun{"srun", "--nodelist=b", "/opt/horarun", "--agent"};

/// Advice upon a command that has ended by itself.
std::string advice(int status, const std::vector<std::string>& command = kSsh) {
  return start_advice({.how = {}, .status = status << 8}, command);
}

TEST(MissingAgent, WhatWasTriedCanBeTyped) {
  EXPECT_EQ(tried_text(kSsh), "; tried: ssh -p 22022 b -- '/opt/my hora/horarun' --agent");
  EXPECT_THAT(advice(255), StartsWith(tried_text(kSsh) + "; "));
}

TEST(MissingAgent, OfAnAgentThatComesByItselfNothingWasTried) {
  EXPECT_EQ(tried_text({}), "");
  EXPECT_EQ(start_advice({}, {}), "");
}

TEST(MissingAgent, SshsOwnFailureIsOfTheWayThere) {
  EXPECT_THAT(advice(255), AllOf(HasSubstr("ssh must log in there without a question"),
                                 HasSubstr("--ssh-port"), Not(HasSubstr("install"))));
}

TEST(MissingAgent, WithoutHorarunThereItIsToBeInstalled) {
  for (const int status : {126, 127}) {
    for (const auto& command : {kSsh, kSrun}) {
      EXPECT_THAT(advice(status, command),
                  AllOf(HasSubstr("install hora on that host"), Not(HasSubstr("log in"))));
    }
  }
}

TEST(MissingAgent, OfSlurmTheNodeIsToBeLookedAt) {
  EXPECT_THAT(advice(1, kSrun), AllOf(HasSubstr("sinfo"), Not(HasSubstr("ssh"))));
}

TEST(MissingAgent, OtherEndsAreToBeTriedByHand) {
  EXPECT_THAT(advice(1), HasSubstr("with --version in place of --agent"));
  EXPECT_THAT(start_advice({.how = {}, .status = SIGKILL}, kSsh),
              HasSubstr("with --version in place of --agent"));
}

TEST(MissingAgent, WhatIsMissingHereIsNamed) {
  EXPECT_THAT(start_advice({.how = "ssh: No such file or directory"}, kSsh),
              HasSubstr("install ssh on this host"));
}

TEST(MissingAgent, OfThisHostsOwnThereIsNoAdvice) {
  EXPECT_EQ(
      start_advice({.how = {}, .status = 127 << 8}, std::vector<std::string>{"horarun", "--agent"}),
      "; tried: horarun --agent");
}

}  // namespace
}  // namespace hora::launch
