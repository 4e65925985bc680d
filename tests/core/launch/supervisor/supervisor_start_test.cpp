// Until all ranks run: hosts, networks, mpirun.
#include "tests/core/launch/supervisor/supervised_job.h"

namespace hora::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class SupervisorStart : public test::SupervisedJob {};

TEST_F(SupervisorStart, StartsMpirunOnTheFirstHostWhenAllArePrepared) {
  Hello hello;
  hello.version = HORA_VERSION;
  message(0, hello);
  message(0, Prepared{});
  message(1, hello);
  EXPECT_THAT(hosts_sent<Start>(), IsEmpty());
  message(1, Prepared{});
  EXPECT_THAT(hosts_sent<Start>(), IsEmpty());
  EXPECT_THAT(hosts_sent<TellNetwork>(), ElementsAre(0, 1));
  try_networks();
  EXPECT_THAT(hosts_sent<Start>(), ElementsAre(0));
  EXPECT_THAT(networks_, ElementsAre("network: 10.77.0.0/24 (a: eth0, b: ens3)"));
  EXPECT_THAT(hosts_sent<Prepare>(), ElementsAre(0, 1));
}

TEST_F(SupervisorStart, SaysWhichCoresAndWhichNetworkRanksGet) {
  Hello hello;
  hello.version = HORA_VERSION;
  Prepared prepared;
  prepared.cores = "2 ranks on 4 cores";
  for (std::size_t host = 0; host < 2; ++host) message(host, hello);
  for (std::size_t host = 0; host < 2; ++host) message(host, prepared);
  try_networks();
  EXPECT_THAT(remarks_, ElementsAre("cores: on each of 2 hosts 2 ranks on 4 cores",
                                    "network: 10.77.0.0/24 (a: eth0, b: ens3)"));
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(SupervisorStart, DoesNotWarnOfClocksWhoseAnswersCameLate) {
  Hello hello;
  hello.version = HORA_VERSION;
  for (std::size_t host = 0; host < 2; ++host) message(host, hello);
  Prepared prepared;
  prepared.clock_ns = 1'000'000'000;
  message(0, prepared);
  now_ += Moment(3000);
  prepared.clock_ns = 4'000'000'000;
  message(1, prepared);
  EXPECT_THAT(said_, IsEmpty());
  EXPECT_THAT(hosts_sent<TellNetwork>(), ElementsAre(0, 1));
}

TEST_F(SupervisorStart, WarnsOfClocksThatDiffer) {
  Hello hello;
  hello.version = HORA_VERSION;
  for (std::size_t host = 0; host < 2; ++host) message(host, hello);
  Prepared prepared;
  prepared.clock_ns = 1'000'000'000;
  message(0, prepared);
  prepared.clock_ns = 5'000'000'000;
  message(1, prepared);
  EXPECT_THAT(said_, ElementsAre(HasSubstr("that of host b is 4.0 s ahead")));
  EXPECT_THAT(hosts_sent<TellNetwork>(), ElementsAre(0, 1));
}

TEST_F(SupervisorStart, NetworksThatAreNotTriedInTimeAreGuessed) {
  prepare();
  tell_networks();
  EXPECT_THAT(hosts_sent<Start>(), IsEmpty());
  pass(Moment(2500));
  EXPECT_THAT(hosts_sent<Start>(), ElementsAre(0));
  EXPECT_EQ(said_.size(), 1U);
}

TEST_F(SupervisorStart, AHostThatDoesNotTellItsNetworkIsNamed) {
  prepare();
  pass(Moment(2500));
  EXPECT_THAT(hosts_sent<Start>(), IsEmpty());
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_THAT(said_[0], HasSubstr("no network interfaces were told by a, b"));
}

TEST_F(SupervisorStart, ADaemonIsStartedByItsHostsAgent) {
  start();
  StartRemote request;
  request.host = "b";
  request.text = "orted -mca x y";
  sent_.clear();
  message(0, request);
  ASSERT_THAT(hosts_sent<Start>(), ElementsAre(1));
  const auto& daemon = std::get<Start>(sent_.back().message);
  EXPECT_EQ(daemon.text, request.text);
  EXPECT_THAT(daemon.environment, ElementsAre("NAME=value", "HORARUN_HOST=b"));
  request.host = "c";
  message(0, request);
  EXPECT_THAT(said_, ElementsAre(HasSubstr("host c, which is not a host of this job")));
}

TEST_F(SupervisorStart, AllProblemsOfAllHostsAreSaidBeforeTheStart) {
  Hello hello;
  hello.version = "0.0.1";
  message(0, hello);
  hello.version = HORA_VERSION;
  message(1, hello);
  message(0, Prepared{});
  Prepared prepared;
  prepared.problems = {"the program ./train: No such file or directory"};
  message(1, prepared);
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_THAT(said_[0], HasSubstr("host a: it has hora 0.0.1, this host has"));
  EXPECT_THAT(said_[0], HasSubstr("host b: the program ./train: No such file"));
  EXPECT_THAT(hosts_sent<Start>(), IsEmpty());
  lost(0);
  lost(1);
  EXPECT_EQ(finished_, 69);
}

TEST_F(SupervisorStart, AnMpirunThatStartsNothingIsShown) {
  prepare();
  try_networks();
  ProcessOutput output;
  const std::string text = "There are not enough slots";
  output.bytes.assign(text.begin(), text.end());
  message(0, output);
  end_mpirun(exited(1));
  pass(Moment(1000));
  EXPECT_THAT(said_,
              ElementsAre("mpirun ended with exit status 1 before it started any rank:\n" + text));
}

TEST_F(SupervisorStart, AHostThatCannotBeReachedIsNamedWithWhatWasTriedAndWhatToDo) {
  lost(1, {.how = "ssh ended with exit status 255: No route", .status = exited(255)});
  ASSERT_EQ(said_.size(), 1U);
  EXPECT_THAT(
      said_[0],
      StartsWith("host b: no agent could be started there (ssh ended with exit status 255: "
                 "No route); its ranks: 2, 3; tried: ssh b -- horarun --agent; ssh must log "
                 "in there without a question"));
}

TEST_F(SupervisorStart, OfAnAgentThatHadBegunNothingIsTried) {
  prepare();
  lost(1, {.how = "ssh ended with exit status 255: Connection reset", .status = exited(255)});
  EXPECT_THAT(said_, ElementsAre("host b: its agent has ended (ssh ended with exit status 255: "
                                 "Connection reset); its ranks: 2, 3"));
}

TEST_F(SupervisorStart, WhatDoesNotStartInTimeIsNamed) {
  Hello hello;
  hello.version = HORA_VERSION;
  message(0, hello);
  message(0, Prepared{});
  for (int i = 0; i < 7; ++i) {
    pass(Moment(5000));
    message(0, Heartbeat{});
  }
  ASSERT_FALSE(said_.empty());
  EXPECT_THAT(said_[0], HasSubstr("no answer within 30 s from b; tried: ssh b -- horarun --agent; "
                                  "--start-timeout"));
}

}  // namespace
}  // namespace hora::launch
