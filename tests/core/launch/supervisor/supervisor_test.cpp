#include "core/launch/supervisor/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/flight/flight_recorder.h"
#include "core/launch/network/network.h"
#include "tests/core/launch/network/hosts_under_test.h"

namespace hora::launch {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Two hosts, a and b, with two ranks each.
class SupervisorTest : public testing::Test {
 protected:
  SupervisorTest() {
    plan_.hosts = {{"a", 2, {"horarun", "--agent"}},
                   {"b", 2, {"ssh", "b", "--", "horarun", "--agent"}}};
    plan_.preparation.program = "./train";
    plan_.mpirun = [this](const NetworkChoice* network) {
      if (network != nullptr) networks_.push_back(network->line);
      Start start;
      start.arguments = {"mpirun"};
      return start;
    };
    plan_.daemon_environment = [](std::size_t, const NetworkChoice*) {
      return std::vector<std::string>{"NAME=value"};
    };
    supervisor_.emplace(plan_, now_);
  }

  /// The status of a process that has ended by exit(`status`), as waitpid(2) gives it.
  static constexpr int exited(int status) { return status << 8; }

  void gather(std::vector<Instruction> actions) {
    for (Instruction& action : actions) {
      const auto* say = std::get_if<Say>(&action);
      if (say != nullptr && !say->verbose) {
        const bool is_remark = say->text.starts_with("cores:") || say->text.starts_with("network:");
        (is_remark ? remarks_ : said_).push_back(say->text);
      }
      if (const auto* finish = std::get_if<Finish>(&action)) finished_ = finish->status;
      if (auto* send = std::get_if<SendTo>(&action)) sent_.push_back(std::move(*send));
    }
  }
  void message(std::size_t host, const Message& message) {
    gather(supervisor_->on_message(host, message, now_));
  }
  void lost(std::size_t host, const LostAgent& agent = {}) {
    gather(supervisor_->on_lost(host, agent, now_));
  }
  void signal(int number) { gather(supervisor_->on_signal(number, now_)); }
  void pass(Moment time) {
    for (const Moment end = now_ + time; now_ < end;) {
      now_ += Moment(100);
      gather(supervisor_->on_time(now_));
    }
  }
  void heartbeats(Moment time) {
    for (const Moment end = now_ + time; now_ < end;) {
      pass(Moment(5000));
      for (std::size_t host = 0; host < 2; ++host) message(host, Heartbeat{});
    }
  }

  void greet(std::size_t host, const std::string& version = HORA_VERSION) {
    message(host, Hello{{}, version});
  }
  /// Until the networks are to be tried.
  void prepare(const Prepared& prepared = {}) {
    for (std::size_t host = 0; host < 2; ++host) greet(host);
    for (std::size_t host = 0; host < 2; ++host) message(host, prepared);
  }
  void stop(int rank) { message(static_cast<std::size_t>(rank) / 2, RankStopped{{}, rank, true}); }
  /// Both agents end, and so does horarun.
  void expect_finish(int status) {
    for (std::size_t host = 0; host < 2; ++host) lost(host);
    EXPECT_EQ(finished_, status);
  }
  void start() {
    prepare();
    try_networks();
    for (int rank = 0; rank < 4; ++rank) {
      message(static_cast<std::size_t>(rank / 2), RankStarted{{}, rank, 100 + rank});
    }
  }
  void tell_networks(bool have_any = true) {
    std::vector<HostNetwork> networks{
        test::host("a", {test::docker0(), test::interface("eth0", "10.77.0.1/24")}),
        test::host("b", {test::docker0(), test::interface("ens3", "10.77.0.2/24")})};
    for (HostNetwork& each : networks) {
      for (HostAddress& address : each.addresses) address.port = 1000;
      if (!have_any) each.addresses.clear();
    }
    for (std::size_t host = 0; host < 2; ++host) {
      message(host, to_message(networks[host]));
    }
  }
  void try_networks() {
    tell_networks();
    for (std::uint32_t host = 0; host < 2; ++host) {
      message(host, NetworkTried{{}, {ProbePair(2, 1 - host, 2)}});
    }
  }
  void end(int rank, int status, bool asked = false, bool shut_down = false) {
    RankEnded ended;
    ended.rank = rank;
    ended.pid = 100 + rank;
    ended.status = status;
    ended.asked_ns = asked ? 1 : 0;
    ended.ended_ns = now_.count();
    ended.initialized = ended.shut_down = shut_down;
    message(static_cast<std::size_t>(rank / 2), ended);
  }
  void end_mpirun(int status) { message(0, ProcessEnded{{}, 0, status}); }
  template <class Body>
  std::vector<std::size_t> hosts_sent() const {
    std::vector<std::size_t> hosts;
    for (const SendTo& each : sent_) {
      if (std::holds_alternative<Body>(each.message)) hosts.push_back(each.host);
    }
    return hosts;
  }
  const EndAll& last_end() const {
    for (auto each = sent_.rbegin(); each != sent_.rend(); ++each) {
      if (const auto* end = std::get_if<EndAll>(&each->message)) return *end;
    }
    throw std::logic_error("no EndAll was sent");
  }

  JobPlan plan_;
  Moment now_{1000};
  std::optional<Supervisor> supervisor_;
  std::vector<std::string> said_;      ///< without what --verbose shows, and without `remarks_`
  std::vector<std::string> remarks_;   ///< which cores and which network the job gets
  std::vector<std::string> networks_;  ///< with which mpirun was started
  std::vector<SendTo> sent_;
  std::optional<int> finished_;
};

// Until all ranks run: hosts, networks, mpirun.

TEST_F(SupervisorTest, StartsMpirunOnTheFirstHostWhenAllArePrepared) {
  greet(0);
  message(0, Prepared{});
  greet(1);
  EXPECT_THAT(hosts_sent<Start>(), IsEmpty());
  message(1, Prepared{});
  EXPECT_THAT(hosts_sent<Start>(), IsEmpty());
  EXPECT_THAT(hosts_sent<TellNetwork>(), ElementsAre(0, 1));
  try_networks();
  EXPECT_THAT(hosts_sent<Start>(), ElementsAre(0));
  EXPECT_THAT(networks_, ElementsAre("network: 10.77.0.0/24 (a: eth0, b: ens3)"));
  EXPECT_THAT(hosts_sent<Prepare>(), ElementsAre(0, 1));
}

TEST_F(SupervisorTest, SaysWhichCoresAndWhichNetworkRanksGet) {
  Prepared prepared;
  prepared.cores = "2 ranks on 4 cores";
  prepare(prepared);
  try_networks();
  EXPECT_THAT(remarks_, ElementsAre("cores: on each of 2 hosts 2 ranks on 4 cores",
                                    "network: 10.77.0.0/24 (a: eth0, b: ens3)"));
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(SupervisorTest, WarnsOfClocksThatDifferByMoreThanTheAnswersTook) {
  for (const bool is_late : {true, false}) {
    greet(0), greet(1);
    Prepared prepared;
    prepared.clock_ns = 1'000'000'000;
    message(0, prepared);
    if (is_late) now_ += Moment(3000);
    prepared.clock_ns = 4'000'000'000;
    message(1, prepared);
    EXPECT_EQ(said_.empty(), is_late);
    supervisor_.emplace(plan_, now_);
  }
  EXPECT_THAT(said_, ElementsAre(HasSubstr("that of host b is 3.0 s ahead")));
  EXPECT_THAT(hosts_sent<TellNetwork>(), ElementsAre(0, 1, 0, 1));
}

TEST_F(SupervisorTest, NetworksThatAreNotTriedInTimeAreGuessed) {
  prepare();
  tell_networks();
  EXPECT_THAT(hosts_sent<Start>(), IsEmpty());
  pass(Moment(2500));
  EXPECT_THAT(hosts_sent<Start>(), ElementsAre(0));
  EXPECT_EQ(said_.size(), 1U);
}

TEST_F(SupervisorTest, AHostThatDoesNotTellItsNetworkIsNamed) {
  prepare();
  pass(Moment(2500));
  EXPECT_THAT(hosts_sent<Start>(), IsEmpty());
  EXPECT_THAT(said_, ElementsAre(HasSubstr("no network interfaces were told by a, b")));
}

TEST_F(SupervisorTest, ADaemonIsStartedByItsHostsAgent) {
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

TEST_F(SupervisorTest, AllProblemsOfAllHostsAreSaidBeforeTheStart) {
  greet(0, "0.0.1");
  greet(1);
  message(0, Prepared{});
  Prepared prepared;
  prepared.problems = {"the program ./train: No such file or directory"};
  message(1, prepared);
  EXPECT_THAT(said_,
              ElementsAre(testing::AllOf(HasSubstr("host a: it has hora 0.0.1, this host has"),
                                         HasSubstr("host b: the program ./train: No such file"))));
  EXPECT_THAT(hosts_sent<Start>(), IsEmpty());
  expect_finish(69);
}

TEST_F(SupervisorTest, WhatDoesNotStartInTimeIsNamed) {
  greet(0);
  message(0, Prepared{});
  for (int i = 0; i < 7; ++i) {
    pass(Moment(5000));
    message(0, Heartbeat{});
  }
  ASSERT_FALSE(said_.empty());
  EXPECT_THAT(said_[0], HasSubstr("no answer within 30 s from b; tried: ssh b -- horarun --agent; "
                                  "--start-timeout"));
}

// From then on.

TEST_F(SupervisorTest, NobodyWaitsForAStoppedRankThatIsTheOnlyOne) {
  JobPlan plan;
  plan.hosts = {{"a", 1, {"horarun", "--agent"}}};
  supervisor_.emplace(plan, now_);
  stop(0);
  pass(Moment(1100));
  EXPECT_THAT(said_, ElementsAre("rank 0 (host a) is stopped (SIGSTOP or SIGTSTP)"));
}

class NetworkCheck : public SupervisorTest {
 protected:
  /// The first check, whose hosts answer each other.
  NetworkCheck() {
    start();
    pass(Moment(100));
    try_networks();
    sent_.clear();
  }
  void wait_long() {
    RankSeen overdue;
    overdue.rank = 1;
    overdue.state = 1;
    overdue.overdue = true;
    message(0, overdue);
  }
  /// The next one: both agents answer, but not over the network, whose interfaces may be down.
  void check_cut_network(bool is_up = true) {
    pass(Moment(2500));
    tell_networks(is_up);
    for (std::size_t host = 0; host < 2; ++host) message(host, NetworkTried());
  }
};

TEST_F(NetworkCheck, ACutNetworkIsNamedWithItsHosts) {
  wait_long();
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(said_, IsEmpty());
    check_cut_network(/*is_up=*/i != 1);
  }
  EXPECT_THAT(said_, ElementsAre(HasSubstr("hosts a and b reach each other no more over the ranks' "
                                           "network: 10.77.0.0/24 (a: eth0, b: ens3)")));
  EXPECT_THAT(hosts_sent<EndAll>(), ElementsAre(0, 1));
}

TEST_F(NetworkCheck, IsMadeOnlyWhileRanksWaitLong) {
  pass(Moment(10000));
  EXPECT_THAT(hosts_sent<TellNetwork>(), IsEmpty());
}

TEST_F(NetworkCheck, OfAHostThatDoesNotAnswerOrAnswersAgainEndsNothing) {
  wait_long();
  check_cut_network(), check_cut_network();
  pass(Moment(2500));
  try_networks();
  check_cut_network(), check_cut_network();
  pass(Moment(9000));  // neither agent tells its network
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(SupervisorTest, EndsWithZeroWhenAllRanksEndedWell) {
  start();
  for (int rank = 0; rank < 4; ++rank) end(rank, exited(0));
  end_mpirun(exited(0));
  pass(Moment(100));
  EXPECT_THAT(hosts_sent<EndAll>(), ElementsAre(0, 1));
  lost(0);
  EXPECT_FALSE(finished_);
  lost(1);
  EXPECT_EQ(finished_, 0);
  EXPECT_THAT(said_, IsEmpty());
}

TEST_F(SupervisorTest, TheCulpritIsNamedOnceAndItsStatusReturned) {
  start();
  end(2, SIGKILL);
  end(3, SIGTERM, true);
  pass(Moment(400));
  EXPECT_THAT(said_, IsEmpty());
  pass(Moment(200));
  EXPECT_THAT(said_, ElementsAre(HasSubstr("rank 2 (host b, pid 102) was killed by signal 9")));
  EXPECT_EQ(last_end().signal, SIGTERM);
  end(0, exited(1));
  end(1, exited(1));
  end_mpirun(exited(137));
  lost(0, {.how = "it has closed the connection"});
  lost(1);
  EXPECT_EQ(said_.size(), 1U);
  EXPECT_EQ(finished_, 137);
}

TEST_F(SupervisorTest, ASilentHostIsNamed) {
  start();
  heartbeats(Moment(60000));
  EXPECT_THAT(said_, IsEmpty());
  for (int i = 0; i < 8; ++i) {
    pass(Moment(4000));
    message(0, Heartbeat{});
  }
  EXPECT_THAT(said_,
              ElementsAre(testing::AllOf(HasSubstr("host b has not been heard from for 30 s"),
                                         HasSubstr("its ranks: 2, 3"))));
  EXPECT_FALSE(finished_);
  lost(0);
  EXPECT_EQ(finished_, 69) << "a silent host is not waited for";
}

TEST_F(SupervisorTest, AgentsThatDoNotEndAreGivenUp) {
  start();
  signal(SIGINT);
  pass(Moment(12000));
  EXPECT_EQ(finished_, 128 + SIGINT);
}

TEST_F(SupervisorTest, ATerminationLeavesTimeToSave) {
  start();
  signal(SIGTERM);
  EXPECT_EQ(last_end().signal, SIGTERM);
  EXPECT_EQ(last_end().grace_ms, 30000U);
  EXPECT_THAT(said_, ElementsAre("ending the job after signal 15 (SIGTERM), within 30 s; a second "
                                 "one ends it at once"));
  heartbeats(Moment(35000));
  EXPECT_FALSE(finished_);
  heartbeats(Moment(5000));
  EXPECT_EQ(finished_, 128 + SIGTERM);
}

TEST_F(SupervisorTest, TheStatusOnWhichRanksAgreeAfterATerminationIsTheJobs) {
  for (const auto& [last, has_shut_down, expected] :
       {std::tuple(SIGTERM, true, 75),  // by MPI, after hora::shutdown
        std::tuple(exited(1), true, 128 + SIGTERM), std::tuple(SIGTERM, false, 128 + SIGTERM)}) {
    supervisor_.emplace(plan_, now_);
    said_.clear();
    start();
    signal(SIGTERM);
    for (int rank = 0; rank < 3; ++rank) end(rank, exited(75), true, true);
    end(3, last, true, has_shut_down);
    expect_finish(expected);
    EXPECT_EQ(said_.size(), 1U);
  }
}

TEST_F(SupervisorTest, RanksOutOfRangeAreIgnored) {
  start();
  for (const int rank : {-1, 4, 1 << 30}) {
    message(0, RankStarted{{}, rank});
    message(0, RankStopped{{}, rank});
    RankEnded ended;
    ended.rank = rank;
    message(0, ended);
  }
  EXPECT_THAT(said_, IsEmpty());
}

}  // namespace
}  // namespace hora::launch
