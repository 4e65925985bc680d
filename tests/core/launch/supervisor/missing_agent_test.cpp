#include "core/launch/supervisor/missing_agent.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <vector>

namespace hora::launch {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::vector<std::string> kSsh{"ssh",    "-p", "22022", "b", "--", "/opt/my hora/horarun",
                                    "--agent"};
const std::vector<std::string> kSrun{"srun", "--nodelist=b", "/opt/horarun", "--agent"};

/// Of a command that has ended by itself.
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
