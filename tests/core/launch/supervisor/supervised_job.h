/// A supervisor of a job, whose events are a test's, and which gathers what it wants done.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/launch/network/network_trial.h"
#include "core/launch/supervisor/supervisor.h"
#include "tests/core/launch/network/hosts_under_test.h"
#include "tests/core/launch/watch/wait_status.h"

namespace hora::launch::test {

/// As waitpid() says it.
/// Two hosts, a and b, with two ranks each.
class SupervisedJob : public testing::Test {
 protected:
  SupervisedJob() {
    JobPlan plan;
    plan.hosts = {{"a", 2, {"horarun", "--agent"}},
                  {"b", 2, {"ssh", "b", "--", "horarun", "--agent"}}};
    plan.preparation.program = "./train";
    plan.mpirun = [this](const NetworkChoice* network) {
      if (network != nullptr) networks_.push_back(network->line);
      Start start;
      start.arguments = {"mpirun"};
      return start;
    };
    plan.daemon_environment = [](std::size_t, const NetworkChoice*) {
      return std::vector<std::string>{"NAME=value"};
    };
    supervisor_.emplace(plan, now_);
  }

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

  /// Until the networks are to be tried.
  void prepare() {
    Hello hello;
    hello.version = HORA_VERSION;
    for (std::size_t host = 0; host < 2; ++host) message(host, hello);
    for (std::size_t host = 0; host < 2; ++host) message(host, Prepared{});
  }
  void start() {
    prepare();
    try_networks();
    for (int rank = 0; rank < 4; ++rank) {
      RankStarted started;
      started.rank = rank;
      started.pid = 100 + rank;
      message(static_cast<std::size_t>(rank / 2), started);
    }
  }
  void tell_networks(bool have_any = true) {
    std::vector<HostNetwork> networks{host("a", {docker0(), interface("eth0", "10.77.0.1/24")}),
                                      host("b", {docker0(), interface("ens3", "10.77.0.2/24")})};
    for (HostNetwork& each : networks) {
      if (!have_any) each.interfaces.clear();
    }
    for (std::size_t host = 0; host < 2; ++host) {
      std::vector<ProbeEndpoint> endpoints;
      for (const Candidate& candidate : candidates_of(networks[host])) {
        endpoints.push_back({candidate.address, 1000});
      }
      message(host, to_message(networks[host], endpoints));
    }
  }
  void try_networks() {
    tell_networks();
    message(0, to_message({ProbePair{1, 1, 1}}));
    message(1, to_message({ProbePair{1, 0, 1}}));
  }
  void end(int rank, int status, bool asked = false) {
    RankEnded ended;
    ended.rank = rank;
    ended.pid = 100 + rank;
    ended.status = status;
    ended.asked_ns = asked ? 1 : 0;
    ended.ended_ns = now_.count();
    message(static_cast<std::size_t>(rank / 2), ended);
  }
  /// After hora::shutdown, told to end.
  void leave(int rank, int status) {
    RankEnded ended;
    ended.rank = rank;
    ended.pid = 100 + rank;
    ended.status = status;
    ended.asked_ns = 1;
    ended.initialized = ended.shut_down = true;
    message(static_cast<std::size_t>(rank / 2), ended);
  }
  void end_mpirun(int status) {
    ProcessEnded ended;
    ended.status = status;
    message(0, ended);
  }
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

  Moment now_{1000};
  std::optional<Supervisor> supervisor_;
  std::vector<std::string> said_;      ///< without what --verbose shows, and without `remarks_`
  std::vector<std::string> remarks_;   ///< which cores and which network the job gets
  std::vector<std::string> networks_;  ///< with which mpirun was started
  std::vector<SendTo> sent_;
  std::optional<int> finished_;
};

}  // namespace hora::launch::test
