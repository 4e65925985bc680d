#include "core/launch/supervisor/supervisor.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "core/base/process.h"
#include "core/launch/watch/ending.h"

namespace hora::launch {
namespace {

constexpr std::uint32_t kMpirun = 0;
/// Agents end what runs, and say goodbye, within this after the grace.
constexpr Moment kAgentsEnd{6000};
constexpr Moment kStoppedWarning{1000};
constexpr int kUnavailable = 69;  ///< sysexits.h, EX_UNAVAILABLE
/// So many checks in which two hosts have not answered mean that the network is cut.
constexpr int kMissedOfCut = 3;
constexpr int kMostPairs = 4;  ///< shown

/// Open MPI leaves domains out of host names. An address has no domain.
bool is_same_host(const std::string& name, const std::string& asked) {
  const auto is_address = [](const std::string& text) {
    return text.find_first_not_of("0123456789.:") == text.npos;
  };
  return name == asked || (!is_address(name) && name.substr(0, name.find('.')) == asked);
}

std::size_t total_ranks(const JobPlan& plan) {
  std::size_t ranks = 0;
  for (const JobHost& host : plan.hosts) ranks += static_cast<std::size_t>(host.ranks);
  return ranks;
}

}  // namespace

Supervisor::Supervisor(JobPlan plan, Moment now)
    : plan_(std::move(plan)), start_(now), ending_(total_ranks(plan_), plan_.ending) {
  hosts_.resize(plan_.hosts.size());
  for (std::size_t host = 0; host < plan_.hosts.size(); ++host) {
    hosts_[host].last_heard = now;
    ranks_.insert(ranks_.end(), static_cast<std::size_t>(plan_.hosts[host].ranks), {.host = host});
  }
}

std::vector<Instruction> Supervisor::on_message(std::size_t host, const Message& message,
                                                Moment now) {
  hosts_[host].last_heard = now;
  std::visit([&](const auto& body) { on(host, body, now); }, message);
  return take();
}

void Supervisor::on(std::size_t host, const Hello& hello, Moment now) {
  hosts_[host].state = HostState::preparing;
  hosts_[host].prepared = {.name = plan_.hosts[host].name,
                           .ranks = plan_.hosts[host].ranks,
                           .version = hello.version,
                           .architecture = hello.architecture,
                           .answer = {},
                           .asked = now};
  Prepare request = plan_.preparation;
  request.ranks = static_cast<std::uint32_t>(plan_.hosts[host].ranks);
  actions_.push_back(SendTo{host, request});
}

void Supervisor::on(std::size_t host, const Prepared& prepared, Moment now) {
  hosts_[host].state = HostState::ready;
  hosts_[host].prepared.answer = prepared;
  hosts_[host].prepared.answered = now;
  const auto is_ready = [](const Host& each) { return each.state == HostState::ready; };
  if (std::ranges::all_of(hosts_, is_ready) && !started_ && !end_limit_) check_hosts(now);
}

void Supervisor::check_hosts(Moment now) {
  std::vector<PreparedHost> hosts;
  for (const Host& host : hosts_) hosts.push_back(host.prepared);
  std::string problems;
  for (const std::string& problem : problems_of(hosts, plan_.needs)) {
    problems += (problems.empty() ? "" : "\n") + problem;
  }
  if (!problems.empty()) return fail(problems, kUnavailable, now);
  started_ = true;
  if (const auto warning = clock_warning(hosts)) actions_.push_back(Say{*warning});
  if (ranks_.size() > 1) actions_.push_back(Say{cores_line(hosts)});
  if (hosts_.size() == 1) return start_mpirun(now);
  try_networks(now);
}

void Supervisor::try_networks(Moment now) {
  trial_.emplace(host_names(), plan_.network_interfaces, plan_.nonce);
  trial_limit_ = now + plan_.network_trial;
  carry_on_trial(trial_->start(), now);
}

std::vector<std::string> Supervisor::host_names() const {
  std::vector<std::string> names;
  for (const JobHost& host : plan_.hosts) names.push_back(host.name);
  return names;
}

template <class Answer>
void Supervisor::on_trial(std::size_t host, const Answer& answer, Moment now) {
  if (trial_limit_) return carry_on_trial(trial_->on(host, answer), now);
  if (check_limit_ && !end_limit_) carry_on_check(check_->on(host, answer), now);
}

void Supervisor::carry_on_trial(NetworkTrial::Messages messages, Moment now) {
  for (auto& [host, message] : messages) actions_.push_back(SendTo{host, std::move(message)});
  const auto& result = trial_->result();
  if (!result) return;
  trial_limit_.reset();
  if (!*result) return fail(result->error(), kUnavailable, now);
  actions_.push_back(Say{(*result)->line, ranks_.size() == 1});
  if ((*result)->warning) actions_.push_back(Say{*(*result)->warning});
  start_mpirun(now);
}

const NetworkChoice* Supervisor::network() const {
  return trial_ && trial_->result() && *trial_->result() ? &**trial_->result() : nullptr;
}

void Supervisor::check_network(Moment now) {
  if (check_limit_ && now >= *check_limit_) carry_on_check(check_->give_up(), now);
  if (check_limit_ || network() == nullptr) return;
  const bool is_due = !last_check_ || (now - *last_check_ >= plan_.network_check &&
                                       std::ranges::any_of(ranks_, &Rank::overdue));
  if (!is_due) return;
  check_.emplace(host_names(), std::vector<std::string>(), plan_.nonce);
  check_limit_ = now + plan_.network_trial;
  carry_on_check(check_->start(), now);
}

void Supervisor::carry_on_check(NetworkTrial::Messages messages, Moment now) {
  for (auto& [host, message] : messages) actions_.push_back(SendTo{host, std::move(message)});
  if (!check_->result()) return;
  check_limit_.reset();
  last_check_ = now;
  if (!check_->all_told()) return;  // check_silence() sees to such a host
  const auto joined = check_->joined(network()->addresses);
  for (const auto& pair : joined) missed_[pair] = 0;
  std::string cut;
  int pairs = 0;
  for (auto& [pair, missed] : missed_) {
    if (joined.contains(pair) || ++missed < kMissedOfCut || ++pairs > kMostPairs) continue;
    cut += (cut.empty() ? "" : ", ") + plan_.hosts[pair.first].name + " and " +
           plan_.hosts[pair.second].name;
  }
  if (cut.empty()) return;
  if (pairs > kMostPairs) cut += ", ... (" + std::to_string(pairs) + " pairs)";
  fail("hosts " + cut + " reach each other no more over the ranks' " + network()->line +
           ", though their agents answer: is a link, a switch or a firewall between them down?",
       kUnavailable, now);
}

void Supervisor::start_mpirun(Moment now) {
  const auto mpirun = plan_.mpirun(network());
  if (!mpirun) return fail(mpirun.error(), kUnavailable, now);
  start(plan_.launcher_host, *mpirun);
}

void Supervisor::start(std::size_t host, Start request) {
  request.environment.push_back(std::string(internal::kHostVariable) + "=" +
                                plan_.hosts[host].name);
  actions_.push_back(SendTo{host, std::move(request)});
}

void Supervisor::on(std::size_t, const StartRemote& request, Moment now) {
  const auto found = std::ranges::find_if(
      plan_.hosts, [&](const JobHost& host) { return is_same_host(host.name, request.host); });
  if (found == plan_.hosts.end()) {
    return fail("mpirun wants to start a daemon on host " + request.host +
                    ", which is not a host of this job",
                kUnavailable, now);
  }
  Start daemon;
  daemon.process = kMpirun + 1;
  daemon.text = request.text;
  const auto host = static_cast<std::size_t>(found - plan_.hosts.begin());
  daemon.environment = plan_.daemon_environment(host, network());
  daemon.folder = plan_.preparation.folder;
  start(host, std::move(daemon));
}

void Supervisor::on(std::size_t, const ProcessOutput& output, Moment) {
  const std::string text(output.bytes.begin(), output.bytes.end());
  ending_.on_output(text);
  actions_.push_back(ShowOutput{text});
}

void Supervisor::on(std::size_t host, const ProcessEnded& ended, Moment now) {
  if (ended.process == kMpirun) {
    ending_.on_mpirun_ended(ended.status, now);
  } else {
    ending_.on_daemon_ended(ended.status, plan_.hosts[host].name, ranks_of(host), now);
  }
}

void Supervisor::on(std::size_t host, const ProcessStopped& stopped, Moment) {
  if (!stopped.stopped || end_limit_) return;
  actions_.push_back(Say{"host " + plan_.hosts[host].name + ": process " +
                         std::to_string(stopped.pid) + " (" + stopped.name +
                         ") of the job is stopped; kill -CONT " + std::to_string(stopped.pid) +
                         " lets it go on"});
}

void Supervisor::on(std::size_t host, const RankStarted& started, Moment) {
  if (!is_rank(started.rank)) return;
  ending_.on_rank_started(started, plan_.hosts[host].name);
  ranks_[started.rank].host = host;
}

void Supervisor::on(std::size_t, const RankStopped& stopped, Moment now) {
  if (!is_rank(stopped.rank)) return;
  ending_.on_rank_stopped(stopped.rank, stopped.stopped, now);
  bool& was_said = ranks_[stopped.rank].stop_was_said;
  if (!stopped.stopped && std::exchange(was_said, false) && !end_limit_) {
    actions_.push_back(Say{"rank " + std::to_string(stopped.rank) + " runs again"});
  }
}

void Supervisor::on(std::size_t, const RankSignalled& signalled, Moment) {
  SignalRanks request;
  request.number = signalled.number;
  request.except = signalled.rank;
  send_all(request);
}

void Supervisor::on(std::size_t, const RankWaits& waits, Moment now) {
  if (is_rank(waits.rank)) ending_.on_rank_waits(waits, now);
}

void Supervisor::on(std::size_t, const RankOverdue& overdue, Moment) {
  if (is_rank(overdue.rank)) ranks_[overdue.rank].overdue = overdue.overdue;
}

void Supervisor::on(std::size_t host, const RankEnded& ended, Moment now) {
  if (!is_rank(ended.rank)) return;
  ranks_[ended.rank].host = host;
  if (!ended.record_failure.empty() && !std::exchange(lost_record_was_said_, true)) {
    actions_.push_back(Say{"no flight record of rank " + std::to_string(ended.rank) + " (host " +
                           plan_.hosts[host].name + "): " + ended.record_failure});
  }
  ending_.on_rank_ended(ended, plan_.hosts[host].name, now);
}

std::vector<Instruction> Supervisor::on_lost(std::size_t host, const LostAgent& lost, Moment now) {
  if (hosts_[host].state == HostState::gone) return {};
  const bool connected =
      std::exchange(hosts_[host].state, HostState::gone) != HostState::connecting;
  if (!end_limit_) {
    fail("host " + plan_.hosts[host].name + ": " +
             (connected ? "its agent has ended" : "no agent could be started there") +
             (lost.how.empty() ? "" : " (" + lost.how + ")") + ranks_of(host) +
             (connected ? "" : start_advice(lost, plan_.hosts[host].agent_command)),
         kUnavailable, now);
  }
  check_end(now);
  return take();
}

std::vector<Instruction> Supervisor::on_signal(int number, Moment now) {
  if (number == SIGUSR1 || number == SIGUSR2) {
    SignalRanks request;
    request.number = number;
    send_all(request);
    return take();
  }
  ++interrupts_;
  if (interrupts_ == 1 && !end_limit_) {
    const bool terminated = number == SIGTERM;
    const Moment grace = terminated ? plan_.terminate_grace : plan_.interrupt_grace;
    const std::string limit =
        terminated ? ", within " + std::to_string(grace.count() / 1000) + " s" : "";
    actions_.push_back(Say{"ending the job after " + signal_text(number) + limit +
                           "; a second one ends it at once"});
    status_ = 128 + number;
    caused_ = true;
    end_all(grace, number, now);
  } else {
    end_all(Moment(0), SIGKILL, now);
  }
  return take();
}

std::vector<Instruction> Supervisor::on_time(Moment now) {
  if (!end_limit_) {
    check_start(now);
    check_silence(now);
    check_stopped(now);
    check_init(now);
    if (trial_limit_ && now >= *trial_limit_) carry_on_trial(trial_->give_up(), now);
    check_network(now);
  }
  check_end(now);
  return take();
}

void Supervisor::check_start(Moment now) {
  if (now - start_ < plan_.start_timeout || end_limit_) return;
  std::string missing, tried;
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    if (hosts_[host].state == HostState::ready) continue;
    missing += (missing.empty() ? "" : ", ") + plan_.hosts[host].name;
    const bool is_first = tried.empty() && hosts_[host].state == HostState::connecting;
    if (is_first) tried = tried_text(plan_.hosts[host].agent_command);
  }
  const std::string limit = std::to_string(plan_.start_timeout.count() / 1000) + " s";
  const std::string advice = "; --start-timeout gives them more time";
  if (!missing.empty()) {
    return fail("no answer within " + limit + " from " + missing + tried + advice, kUnavailable,
                now);
  }
  std::string ranks;
  for (int rank = 0; is_rank(rank); ++rank) {
    if (!ending_.has_started(rank)) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (!ranks.empty()) {
    fail("mpirun has not started the ranks " + ranks + " within " + limit + advice +
             (ending_.output().empty() ? "" : "\n" + ending_.output()),
         kUnavailable, now);
  }
}

void Supervisor::check_silence(Moment now) {
  for (std::size_t host = 0; host < hosts_.size() && !end_limit_; ++host) {
    const Host& each = hosts_[host];
    if (each.state != HostState::preparing && each.state != HostState::ready) continue;
    if (now - each.last_heard < plan_.silence) continue;
    fail("host " + plan_.hosts[host].name + " has not been heard from for " +
             std::to_string((now - each.last_heard).count() / 1000) +
             " s: it hangs, or the network to it is cut" + ranks_of(host),
         kUnavailable, now);
  }
}

void Supervisor::check_stopped(Moment now) {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    const auto since = ending_.stopped_since(static_cast<int>(i));
    if (!since || rank.stop_was_said || now - *since < kStoppedWarning) continue;
    rank.stop_was_said = true;
    actions_.push_back(Say{"rank " + std::to_string(i) + " (host " + plan_.hosts[rank.host].name +
                           ") is stopped (SIGSTOP or SIGTSTP)" +
                           (ranks_.size() > 1 ? "; the others wait for it" : "")});
  }
}

void Supervisor::check_init(Moment now) {
  const auto late = ending_.late_for_init(now);
  if (late && !init_was_said_) actions_.push_back(Say{*late});
  init_was_said_ = late.has_value();
}

void Supervisor::check_end(Moment now) {
  if (finished_) return;
  if (!caused_) {
    if (const auto cause = ending_.cause(now)) fail(cause->text, cause->status, now);
  }
  if (!end_limit_ && ending_.is_over(now)) end_all(Moment(0), SIGTERM, now);
  if (!end_limit_) return;
  // A host that is silent ends by itself what runs there.
  const auto is_gone = [&](const Host& host) {
    return host.state == HostState::gone || host.state == HostState::connecting ||
           now - host.last_heard >= plan_.silence;
  };
  if (!std::ranges::all_of(hosts_, is_gone) && now < *end_limit_) return;
  finished_ = true;
  // Ranks that were told to end and have agreed on how they leave.
  const auto agreed = interrupts_ == 1 ? ending_.common_status() : std::nullopt;
  actions_.push_back(Finish{agreed.value_or(status_)});
}

void Supervisor::fail(const std::string& reason, int status, Moment now) {
  if (!std::exchange(caused_, true)) {
    status_ = status;
    actions_.push_back(Say{reason});
  }
  end_all(plan_.grace, SIGTERM, now);
}

void Supervisor::end_all(Moment grace, int signal, Moment now) {
  EndAll request;
  request.grace_ms = static_cast<std::uint32_t>(grace.count());
  request.signal = signal;
  request.status = status_;
  send_all(request);
  const Moment limit = now + grace + kAgentsEnd;
  if (!end_limit_ || limit < *end_limit_) end_limit_ = limit;
}

void Supervisor::send_all(const Message& message) {
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    if (hosts_[host].state != HostState::gone) actions_.push_back(SendTo{host, message});
  }
}

std::string Supervisor::ranks_of(std::size_t host) const {
  std::string text;
  for (int rank = 0; is_rank(rank); ++rank) {
    if (ranks_[rank].host != host || ending_.has_ended(rank)) continue;
    text += (text.empty() ? "; its ranks: " : ", ") + std::to_string(rank);
  }
  return text;
}

bool Supervisor::is_rank(int rank) const {
  return rank >= 0 && static_cast<std::size_t>(rank) < ranks_.size();
}

}  // namespace hora::launch
