#include "core/launch/supervisor/supervisor.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "core/launch/watch/ending.h"

namespace hora::launch {
namespace {

constexpr std::uint32_t kMpirun = 0;
constexpr std::size_t kMostOutputKept = 8000;
/// Agents end what runs, and say goodbye, within this after the grace.
constexpr Moment kAgentsEnd{6000};
constexpr Moment kStoppedWarning{1000};
constexpr std::int64_t kClockDifference = 1'000'000'000;
constexpr int kUnavailable = 69;  ///< sysexits.h, EX_UNAVAILABLE

/// Open MPI leaves domains out of host names. An address has no domain.
bool is_same_host(const std::string& name, const std::string& asked) {
  const auto is_address = [](const std::string& text) {
    return text.find_first_not_of("0123456789.:") == text.npos;
  };
  return name == asked || (!is_address(name) && name.substr(0, name.find('.')) == asked);
}

/// The rank of which Open MPI says that it has left without MPI_Init while others called it; -1: it
/// says so of none.
int left_before_init(const std::string& mpirun_output) {
  constexpr std::string_view kStart = "due to process rank ";
  const auto start = mpirun_output.find(kStart);
  if (start == mpirun_output.npos ||
      mpirun_output.find("exiting improperly") == mpirun_output.npos) {
    return -1;
  }
  return std::atoi(mpirun_output.c_str() + start + kStart.size());
}

}  // namespace

Supervisor::Supervisor(JobPlan plan, Moment now) : plan_(std::move(plan)), start_(now) {
  hosts_.resize(plan_.hosts.size());
  for (std::size_t host = 0; host < plan_.hosts.size(); ++host) {
    hosts_[host].last_heard = now;
    for (int i = 0; i < plan_.hosts[host].ranks; ++i) ranks_.push_back({.host = host});
  }
}

std::vector<Instruction> Supervisor::on_message(std::size_t host, const Message& message,
                                                Moment now) {
  hosts_[host].last_heard = now;
  std::visit([&](const auto& body) { on(host, body, now); }, message);
  return take();
}

void Supervisor::on(std::size_t host, const Hello& hello, Moment) {
  const std::string& name = plan_.hosts[host].name;
  if (hello.version != HORA_VERSION) {
    hosts_[host].problems.push_back("host " + name + " has hora " + hello.version +
                                    ", this host has " + HORA_VERSION +
                                    "; install the same version on all hosts");
  }
  hosts_[host].state = HostState::preparing;
  Prepare request = plan_.preparation;
  request.ranks = static_cast<std::uint32_t>(plan_.hosts[host].ranks);
  actions_.push_back(SendTo{host, request});
}

void Supervisor::on(std::size_t host, const Prepared& prepared, Moment now) {
  hosts_[host].state = HostState::ready;
  for (const std::string& problem : prepared.problems) {
    hosts_[host].problems.push_back("host " + plan_.hosts[host].name + ": " + problem);
  }
  const auto is_ready = [](const Host& each) { return each.state == HostState::ready; };
  if (!std::ranges::all_of(hosts_, is_ready) || started_ || end_limit_) return;
  std::string problems;
  for (const Host& each : hosts_) {
    for (const std::string& problem : each.problems) {
      problems += (problems.empty() ? "" : "\n") + problem;
    }
  }
  if (!problems.empty()) return fail(problems, kUnavailable, now);
  started_ = true;
  if (hosts_.size() == 1) return start_mpirun(now);
  try_networks(now);
}

void Supervisor::try_networks(Moment now) {
  std::vector<std::string> names;
  for (const JobHost& host : plan_.hosts) names.push_back(host.name);
  trial_.emplace(std::move(names), plan_.network_interfaces, plan_.nonce);
  trial_limit_ = now + plan_.network_trial;
  carry_on_trial(trial_->start(), now);
}

void Supervisor::on(std::size_t host, const NetworkTold& told, Moment now) {
  if (trial_ && trial_limit_) carry_on_trial(trial_->on(host, told), now);
}

void Supervisor::on(std::size_t host, const NetworkTried& tried, Moment now) {
  if (trial_ && trial_limit_) carry_on_trial(trial_->on(host, tried), now);
}

void Supervisor::carry_on_trial(NetworkTrial::Messages messages, Moment now) {
  for (auto& [host, message] : messages) actions_.push_back(SendTo{host, std::move(message)});
  const auto& result = trial_->result();
  if (!result) return;
  trial_limit_.reset();
  if (!*result) return fail(result->error(), kUnavailable, now);
  actions_.push_back(Say{(*result)->line, true});
  if ((*result)->warning) actions_.push_back(Say{*(*result)->warning});
  start_mpirun(now);
}

const NetworkChoice* Supervisor::network() const {
  return trial_ && trial_->result() && *trial_->result() ? &**trial_->result() : nullptr;
}

void Supervisor::start_mpirun(Moment now) {
  const auto mpirun = plan_.mpirun(network());
  if (!mpirun) return fail(mpirun.error(), kUnavailable, now);
  actions_.push_back(SendTo{plan_.launcher_host, *mpirun});
}

void Supervisor::on(std::size_t, const StartRemote& request, Moment now) {
  const auto found = std::ranges::find_if(
      plan_.hosts, [&](const JobHost& host) { return is_same_host(host.name, request.host); });
  if (found == plan_.hosts.end()) {
    return fail("mpirun wants to start a daemon on host " + request.host +
                    ", which is not a host of this job",
                kUnavailable, now);
  }
  Start start;
  start.process = kMpirun + 1;
  start.text = request.text;
  const auto host = static_cast<std::size_t>(found - plan_.hosts.begin());
  start.environment = plan_.daemon_environment(host, network());
  start.folder = plan_.preparation.folder;
  actions_.push_back(SendTo{host, start});
}

void Supervisor::on(std::size_t, const ProcessOutput& output, Moment) {
  const std::string text(output.bytes.begin(), output.bytes.end());
  mpirun_output_ += text;
  if (mpirun_output_.size() > kMostOutputKept) {
    mpirun_output_.erase(0, mpirun_output_.size() - kMostOutputKept);
  }
  actions_.push_back(ShowOutput{text});
}

void Supervisor::on(std::size_t host, const ProcessEnded& ended, Moment now) {
  if (ended.process == kMpirun) {
    mpirun_status_ = ended.status;
    mpirun_ended_ = now;
  }
  if (!WIFSIGNALED(ended.status) || killed_ || end_limit_) return;
  const std::string text = ended.process == kMpirun
                               ? "mpirun " + status_text(ended.status)
                               : "host " + plan_.hosts[host].name + ": MPI's daemon there " +
                                     status_text(ended.status) + ranks_of(host);
  killed_ = {text, 128 + WTERMSIG(ended.status), now};
}

void Supervisor::on(std::size_t host, const ProcessStopped& stopped, Moment) {
  if (!stopped.stopped || end_limit_) return;
  actions_.push_back(Say{"host " + plan_.hosts[host].name + ": process " +
                         std::to_string(stopped.pid) + " (" + stopped.name +
                         ") of the job is stopped; kill -CONT " + std::to_string(stopped.pid) +
                         " lets it go on"});
}

void Supervisor::on(std::size_t host, const RankStarted& started, Moment) {
  if (started.rank < 0 || static_cast<std::size_t>(started.rank) >= ranks_.size()) return;
  ranks_[started.rank].started = true;
  ranks_[started.rank].host = host;
}

void Supervisor::on(std::size_t, const RankStopped& stopped, Moment now) {
  if (stopped.rank < 0 || static_cast<std::size_t>(stopped.rank) >= ranks_.size()) return;
  Rank& rank = ranks_[stopped.rank];
  rank.stopped_since = stopped.stopped ? std::optional(now) : std::nullopt;
  if (!stopped.stopped && std::exchange(rank.stop_was_said, false) && !end_limit_) {
    actions_.push_back(Say{"rank " + std::to_string(stopped.rank) + " runs again"});
  }
}

void Supervisor::on(std::size_t, const RankSignalled& signalled, Moment) {
  SignalRanks request;
  request.number = signalled.number;
  request.except = signalled.rank;
  send_all(request);
}

void Supervisor::on(std::size_t, const RankInitializing& message, Moment now) {
  if (message.rank < 0 || static_cast<std::size_t>(message.rank) >= ranks_.size()) return;
  ranks_[message.rank].initializing_since =
      message.initializing ? std::optional(now) : std::nullopt;
}

void Supervisor::on(std::size_t host, const RankEnded& ended, Moment now) {
  if (ended.rank < 0 || static_cast<std::size_t>(ended.rank) >= ranks_.size()) return;
  Rank& rank = ranks_[ended.rank];
  rank.started = rank.ended = true;
  rank.host = host;
  rank.stopped_since.reset();
  rank.initializing_since.reset();
  rank.ended_at = now;
  ended_.push_back(ended);
  if (all_ended()) last_rank_ended_ = now;
  if (!ended_well(ended) && !first_failure_) first_failure_ = now;
}

std::vector<Instruction> Supervisor::on_lost(std::size_t host, const std::string& reason,
                                             Moment now) {
  if (hosts_[host].state == HostState::gone) return {};
  const bool connected =
      std::exchange(hosts_[host].state, HostState::gone) != HostState::connecting;
  if (!end_limit_) {
    fail("host " + plan_.hosts[host].name + ": " +
             (connected ? "its agent has ended" : "no agent could be started there") +
             (reason.empty() ? "" : " (" + reason + ")") + ranks_of(host),
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
    actions_.push_back(
        Say{"ending the job after " + signal_text(number) + "; a second one ends it at once"});
    status_ = 128 + number;
    caused_ = true;
    end_all(plan_.interrupt_grace, number, now);
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
    check_left_before_init(now);
    if (trial_limit_ && now >= *trial_limit_) carry_on_trial(trial_->give_up(), now);
  }
  check_end(now);
  return take();
}

void Supervisor::check_start(Moment now) {
  if (now - start_ < plan_.start_timeout || end_limit_) return;
  std::string missing;
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    if (hosts_[host].state == HostState::ready) continue;
    missing += (missing.empty() ? "" : ", ") + plan_.hosts[host].name;
  }
  const std::string limit = std::to_string(plan_.start_timeout.count() / 1000) + " s";
  const std::string advice = "; --start-timeout gives them more time";
  if (!missing.empty()) {
    return fail("no answer within " + limit + " from " + missing + advice, kUnavailable, now);
  }
  std::string ranks;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (!ranks_[rank].started) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (!ranks.empty()) {
    fail("mpirun has not started the ranks " + ranks + " within " + limit + advice +
             (mpirun_output_.empty() ? "" : "\n" + mpirun_output_),
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
    if (!rank.stopped_since || rank.stop_was_said || now - *rank.stopped_since < kStoppedWarning) {
      continue;
    }
    rank.stop_was_said = true;
    actions_.push_back(Say{"rank " + std::to_string(i) + " (host " + plan_.hosts[rank.host].name +
                           ") is stopped (SIGSTOP or SIGTSTP); the others wait for it"});
  }
}

void Supervisor::check_left_before_init(Moment now) {
  const auto left = std::ranges::find_if(
      ended_, [](const RankEnded& each) { return ended_well(each) && !each.initialized; });
  if (left == ended_.end() || end_limit_) return;
  const Moment since = *ranks_[left->rank].ended_at;
  const auto waits = [&](const Rank& rank) {
    return rank.initializing_since &&
           now - std::max(since, *rank.initializing_since) >= plan_.init_alone;
  };
  if (std::ranges::any_of(ranks_, waits)) fail_left_before_init(*left, now);
}

void Supervisor::fail_left_before_init(const RankEnded& left, Moment now) {
  fail(ending_text(left, plan_.hosts[ranks_[left.rank].host].name) +
           ", before it called hora::init, in which the others waited for it",
       std::max(1, exit_status(left)), now);
}

void Supervisor::check_end(Moment now) {
  if (finished_) return;
  const bool may_be_consequences = std::ranges::all_of(ended_, [](const RankEnded& each) {
    return ended_well(each) || is_likely_consequence(each);
  });
  const Moment gather = may_be_consequences ? plan_.gather_consequences : plan_.gather;
  // Of mpirun or a daemon; their ranks end with them. After the last rank it means nothing.
  const bool was_killed = killed_ && may_be_consequences && (first_failure_ || !all_ended());
  if (!caused_ && was_killed && now - killed_->time >= plan_.gather) {
    fail(killed_->text, killed_->status, now);
  }
  const bool no_more_comes = all_ended() && (!may_be_consequences || mpirun_ended_);
  if (first_failure_ && !caused_ && !was_killed &&
      (now - *first_failure_ >= gather || no_more_comes)) {
    const RankEnded& culprit = ended_[*first_cause(ended_)];
    const auto left = std::ranges::find(ended_, left_before_init(mpirun_output_), &RankEnded::rank);
    if (is_likely_consequence(culprit) && left != ended_.end()) {
      fail_left_before_init(*left, now);
    } else {
      const std::string& host = plan_.hosts[ranks_[culprit.rank].host].name;
      fail(ending_text(culprit, host), exit_status(culprit), now);
    }
  }
  const bool any = std::ranges::any_of(ranks_, &Rank::started);
  // A rank that has made mpirun end says so itself.
  if (!caused_ && mpirun_ended_ && !all_ended() &&
      now - *mpirun_ended_ >= (any ? plan_.gather_consequences : plan_.gather)) {
    const int status = WIFSIGNALED(*mpirun_status_) ? 128 + WTERMSIG(*mpirun_status_)
                                                    : WEXITSTATUS(*mpirun_status_);
    fail("mpirun " + status_text(*mpirun_status_) + (any ? "" : " before it started any rank") +
             (any || mpirun_output_.empty() ? "" : ":\n" + mpirun_output_),
         status == 0 ? 1 : status, now);
  }
  const bool mpirun_is_late = last_rank_ended_ && now - *last_rank_ended_ >= plan_.mpirun_exit;
  const bool is_explained = caused_ || !first_failure_;
  if (!end_limit_ && is_explained && all_ended() && (mpirun_ended_ || mpirun_is_late)) {
    end_all(Moment(0), SIGTERM, now);
  }
  if (!end_limit_) return;
  const auto is_gone = [](const Host& host) {
    return host.state == HostState::gone || host.state == HostState::connecting;
  };
  if (!std::ranges::all_of(hosts_, is_gone) && now < *end_limit_) return;
  finished_ = true;
  actions_.push_back(Finish{status_});
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
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].host != host || ranks_[rank].ended) continue;
    text += (text.empty() ? "; its ranks: " : ", ") + std::to_string(rank);
  }
  return text;
}

bool Supervisor::all_ended() const {
  return std::ranges::all_of(ranks_, &Rank::ended);
}

}  // namespace hora::launch
