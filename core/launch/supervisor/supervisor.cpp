#include "core/launch/supervisor/supervisor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/process.h"
#include "core/launch/command/command.h"
#include "core/launch/watch/ending.h"

namespace hora::launch {
namespace {

constexpr double kClockLimit = 1;  // seconds
constexpr std::size_t kMostNamedHosts = 8;

std::string in_mib(std::uint64_t bytes) {
  return fmt::format("{} MiB", bytes >> 20);
}

/// The first names, and how many more there are.
std::string names_of(std::vector<std::string> names) {
  if (names.size() > kMostNamedHosts) {
    const std::string more = fmt::format("{} more", names.size() - kMostNamedHosts);
    names.resize(kMostNamedHosts);
    names.push_back(more);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// "its 4 ranks need 32 MiB".
std::string need_of(const PreparedHost& host, std::uint64_t bytes) {
  return host.ranks == 1 ? "its rank needs " + in_mib(bytes)
                         : fmt::format("its {} ranks need {}", host.ranks, in_mib(bytes));
}

}  // namespace

std::vector<std::string> problems_of(std::span<const PreparedHost> hosts, const RankNeeds& needs) {
  std::vector<std::string> problems;
  for (const PreparedHost& host : hosts) {
    const auto add = [&](const std::string& text) {
      problems.push_back(fmt::format("host {}: {}", host.name, text));
    };
    if (host.version != HORA_VERSION) {
      add(fmt::format("it has hora {}, this host has {}; install the same version on all hosts",
                      host.version, HORA_VERSION));
      continue;  // what it has answered may mean something else
    }
    for (const std::string& problem : host.answer.problems) add(problem);
    if (host.architecture != hosts.front().architecture) {
      add(fmt::format(
          "its processors are {}, those of host {} are {}; all hosts of a job have the same",
          host.architecture, hosts.front().name, hosts.front().architecture));
    }
    const auto ranks = static_cast<std::uint64_t>(host.ranks);
    if (host.answer.shared_memory < ranks * needs.shared_memory) {
      add(fmt::format(
          "/dev/shm has {} left, {}; remove what lies there, or make it larger (mount -o "
          "remount,size=1G /dev/shm; docker run --shm-size=1g)",
          in_mib(host.answer.shared_memory), need_of(host, ranks * needs.shared_memory)));
    }
    if (host.answer.memory != 0 && host.answer.memory < ranks * needs.memory) {
      add(
          fmt::format("{} of memory are available, {}; end what else runs there, start fewer ranks "
                      "on it, or raise its limit (docker run --memory, sbatch --mem)",
                      in_mib(host.answer.memory), need_of(host, ranks * needs.memory)));
    }
  }
  return problems;
}

std::optional<std::string> clock_warning(std::span<const PreparedHost> hosts) {
  using Seconds = std::chrono::duration<double>;
  const auto half = [](const PreparedHost& host) {
    return Seconds(host.answered - host.asked).count() / 2;
  };
  std::vector<std::string> differences;
  for (const PreparedHost& host : hosts) {
    const PreparedHost& first = hosts.front();
    const double within = half(first) + half(host);
    // Differences of times in nanoseconds since 1970 are exact, the times as `double` are not.
    const double ahead = static_cast<double>(host.answer.clock_ns - first.answer.clock_ns) * 1e-9 -
                         Seconds(host.asked - first.asked).count() - half(host) + half(first);
    if (std::abs(ahead) - within <= kClockLimit) continue;
    differences.push_back(fmt::format("that of host {} is {:.1f} s {} (known to within {:.2f} s)",
                                      host.name, std::abs(ahead), ahead > 0 ? "ahead" : "behind",
                                      within));
  }
  if (differences.empty()) return std::nullopt;
  return fmt::format(
      "the hosts' clocks differ by more than 1 s: compared with host {}, {}; which of several "
      "ranks "
      "failed first may be said wrongly; let NTP set the clocks (chrony, systemd-timesyncd)",
      hosts.front().name, names_of(std::move(differences)));
}

std::string cores_line(std::span<const PreparedHost> hosts) {
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;  // cores, names
  for (const PreparedHost& host : hosts) {
    if (host.ranks == 0) continue;
    auto group =
        std::ranges::find(groups, host.answer.cores, [](auto& each) { return each.first; });
    if (group == groups.end()) group = groups.insert(group, {host.answer.cores, {}});
    group->second.push_back(host.name);
  }
  if (groups.size() == 1) {
    const std::size_t count = groups.front().second.size();
    return fmt::format("cores: {}{}", count == 1 ? "" : fmt::format("on each of {} hosts ", count),
                       groups.front().first);
  }
  std::vector<std::string> texts;
  for (auto& [cores, names] : groups) texts.push_back(names_of(std::move(names)) + ": " + cores);
  return fmt::format("cores: {}", fmt::join(texts, "; "));
}

namespace {

std::string what_to_do(const LostAgent& lost, std::span<const std::string> command) {
  constexpr int kFailureOfSsh = 255, kCannotExecute = 126, kNotFound = 127;
  const std::string& program = command.front();
  if (command.size() == 2) return {};  // the agent itself, on this host
  if (!lost.status) return "install " + program + " on this host";
  const int status = WIFEXITED(*lost.status) ? WEXITSTATUS(*lost.status) : -1;
  if (status == kNotFound || status == kCannotExecute) {
    return "horarun must be there under this very path, with its libraries: install hora on that "
           "host, too, or in a folder that all hosts share";
  }
  if (program == "srun") return "is the node up (sinfo), and is this job's allocation still there?";
  if (status == kFailureOfSsh) {
    return "ssh must log in there without a question: is the name right, the host up, its sshd "
           "reachable, this user's key there? --ssh-port and --ssh-identity-file name others";
  }
  return "this command must go through: with --version in place of --agent it prints horarun's "
         "version";
}

}  // namespace

std::string tried_text(std::span<const std::string> command) {
  if (command.empty()) return {};
  return "; tried: " + as_shell_line({{command.begin(), command.end()}, {}});
}

std::string start_advice(const LostAgent& lost, std::span<const std::string> command) {
  if (command.empty()) return {};
  const std::string advice = what_to_do(lost, command);
  return tried_text(command) + (advice.empty() ? "" : "; " + advice);
}

namespace {

constexpr std::uint32_t kMpirun = 0;
/// Agents end what runs, and say goodbye, within this after the grace.
constexpr Moment kAgentsEnd{6000};
constexpr Moment kStoppedWarning{1000};
constexpr int kUnavailable = 69;  ///< sysexits.h, EX_UNAVAILABLE
/// So many checks in which two hosts have not answered mean that the network is cut.
constexpr int kMissedOfCut = 3;
constexpr std::size_t kMostPairs = 4;  ///< shown

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
  send_to(host, request);
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
  const auto problems = problems_of(hosts, plan_.needs);
  if (!problems.empty()) {
    return fail(fmt::format("{}", fmt::join(problems, "\n")), kUnavailable, now);
  }
  started_ = true;
  if (const auto warning = clock_warning(hosts)) say("{}", *warning);
  if (ranks_.size() > 1) say("{}", cores_line(hosts));
  if (hosts_.size() == 1) return start_mpirun(now);
  start_trial(plan_.network_interfaces, now);
}

void Supervisor::start_trial(std::vector<std::string> named, Moment now) {
  std::vector<std::string> hosts;
  for (const JobHost& host : plan_.hosts) hosts.push_back(host.name);
  trial_.emplace(std::move(hosts), std::move(named), plan_.nonce);
  trial_limit_ = now + plan_.network_trial;
  carry_on_trial(trial_->start(), now);
}

template <class Answer>
void Supervisor::on_trial(std::size_t host, const Answer& answer, Moment now) {
  if (trial_limit_ && !end_limit_) carry_on_trial(trial_->on(host, answer), now);
}

void Supervisor::carry_on_trial(NetworkTrial::Messages messages, Moment now) {
  for (auto& [host, message] : messages) send_to(host, std::move(message));
  if (!trial_->result()) return;
  trial_limit_.reset();
  if (network_) return compare_trial(now);
  const auto& result = *trial_->result();
  if (!result) return fail(result.error(), kUnavailable, now);
  network_ = *result;
  actions_.push_back(Say{network_->line, ranks_.size() == 1});
  if (network_->warning) say("{}", *network_->warning);
  start_mpirun(now);
}

/// Tries the chosen network again where that is due.
void Supervisor::check_network(Moment now) {
  if (trial_limit_ && now >= *trial_limit_) carry_on_trial(trial_->give_up(), now);
  if (trial_limit_ || !network_ || end_limit_) return;
  const bool is_due = !last_check_ || (now - *last_check_ >= plan_.network_check &&
                                       std::ranges::any_of(ranks_, &Rank::overdue));
  if (is_due) start_trial({}, now);
}

/// Ends the job where hosts have answered once, and then not in several trials while ranks wait.
void Supervisor::compare_trial(Moment now) {
  last_check_ = now;
  if (!trial_->all_told()) return;  // check_silence() sees to such a host
  const auto joined = trial_->joined(network_->addresses);
  for (const auto& pair : joined) missed_[pair] = 0;
  std::vector<std::string> cut;
  for (auto& [pair, missed] : missed_) {
    if (joined.contains(pair) || ++missed < kMissedOfCut) continue;
    cut.push_back(plan_.hosts[pair.first].name + " and " + plan_.hosts[pair.second].name);
  }
  if (cut.empty()) return;
  fail(fmt::format("hosts {} reach each other no more over the ranks' {}, though their agents "
                   "answer: is a link, a switch or a firewall between them down?",
                   pairs_text(std::move(cut), kMostPairs), network_->line),
       kUnavailable, now);
}

void Supervisor::start_mpirun(Moment now) {
  const auto mpirun = plan_.mpirun(network());
  if (!mpirun) return fail(mpirun.error(), kUnavailable, now);
  start(plan_.launcher_host, *mpirun);
}

void Supervisor::start(std::size_t host, Start request) {
  request.environment.push_back(
      fmt::format("{}={}", internal::kHostVariable, plan_.hosts[host].name));
  send_to(host, std::move(request));
}

void Supervisor::on(std::size_t, const StartRemote& request, Moment now) {
  const auto found = std::ranges::find_if(
      plan_.hosts, [&](const JobHost& host) { return is_same_host(host.name, request.host); });
  if (found == plan_.hosts.end()) {
    return fail(
        fmt::format("mpirun wants to start a daemon on host {}, which is not a host of this "
                    "job",
                    request.host),
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
  actions_.push_back(Say{text, true, true});
}

void Supervisor::on(std::size_t host, const ProcessEnded& ended, Moment now) {
  if (ended.process == kMpirun) {
    ending_.on_mpirun_ended(ended.status, now);
  } else {
    ending_.on_daemon_ended(ended.status, plan_.hosts[host].name, ranks_of(host), now);
  }
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
    say("rank {} runs again", stopped.rank);
  }
}

void Supervisor::on(std::size_t, const RankSignalled& signalled, Moment) {
  SignalRanks request;
  request.number = signalled.number;
  request.except = signalled.rank;
  send_all(request);
}

void Supervisor::on(std::size_t, const RankSeen& seen, Moment now) {
  if (!is_rank(seen.rank)) return;
  ranks_[seen.rank].overdue = seen.overdue;
  ending_.on_rank_seen(seen, now);
}

void Supervisor::on(std::size_t host, const RankEnded& ended, Moment now) {
  if (!is_rank(ended.rank)) return;
  ranks_[ended.rank].host = host;
  if (!ended.record_failure.empty() && !std::exchange(lost_record_was_said_, true)) {
    say("no flight record of rank {} (host {}): {}", ended.rank, plan_.hosts[host].name,
        ended.record_failure);
  }
  ending_.on_rank_ended(ended, plan_.hosts[host].name, now);
}

std::vector<Instruction> Supervisor::on_lost(std::size_t host, const LostAgent& lost, Moment now) {
  if (hosts_[host].state == HostState::gone) return {};
  const bool connected =
      std::exchange(hosts_[host].state, HostState::gone) != HostState::connecting;
  if (!end_limit_) {
    const JobHost& plan = plan_.hosts[host];
    fail(fmt::format("host {}: {}{}{}{}", plan.name,
                     connected ? "its agent has ended" : "no agent could be started there",
                     lost.how.empty() ? "" : fmt::format(" ({})", lost.how), ranks_of(host),
                     connected ? "" : start_advice(lost, plan.agent_command)),
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
    say("ending the job after {}{}; a second one ends it at once", signal_text(number),
        terminated ? fmt::format(", within {} s", grace.count() / 1000) : "");
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
    check_network(now);
  }
  check_end(now);
  return take();
}

void Supervisor::check_start(Moment now) {
  if (now - start_ < plan_.start_timeout || end_limit_) return;
  std::vector<std::string> missing;
  std::string tried;
  for (std::size_t host = 0; host < hosts_.size(); ++host) {
    if (hosts_[host].state == HostState::ready) continue;
    missing.push_back(plan_.hosts[host].name);
    const bool is_first = tried.empty() && hosts_[host].state == HostState::connecting;
    if (is_first) tried = tried_text(plan_.hosts[host].agent_command);
  }
  const auto limit = plan_.start_timeout.count() / 1000;
  if (!missing.empty()) {
    return fail(fmt::format("no answer within {} s from {}{}; --start-timeout gives them more time",
                            limit, fmt::join(missing, ", "), tried),
                kUnavailable, now);
  }
  std::vector<int> ranks;
  for (int rank = 0; is_rank(rank); ++rank) {
    if (!ending_.has_started(rank)) ranks.push_back(rank);
  }
  if (ranks.empty()) return;
  fail(fmt::format(
           "mpirun has not started the ranks {} within {} s; --start-timeout gives them more "
           "time{}{}",
           fmt::join(ranks, ", "), limit, ending_.output().empty() ? "" : "\n", ending_.output()),
       kUnavailable, now);
}

void Supervisor::check_silence(Moment now) {
  for (std::size_t host = 0; host < hosts_.size() && !end_limit_; ++host) {
    const Host& each = hosts_[host];
    if (each.state != HostState::preparing && each.state != HostState::ready) continue;
    if (now - each.last_heard < plan_.silence) continue;
    fail(
        fmt::format("host {} has not been heard from for {} s: it hangs, or the network to it is "
                    "cut{}",
                    plan_.hosts[host].name, (now - each.last_heard).count() / 1000, ranks_of(host)),
        kUnavailable, now);
  }
}

void Supervisor::check_stopped(Moment now) {
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    const auto since = ending_.stopped_since(static_cast<int>(i));
    if (!since || rank.stop_was_said || now - *since < kStoppedWarning) continue;
    rank.stop_was_said = true;
    say("rank {} (host {}) is stopped (SIGSTOP or SIGTSTP){}", i, plan_.hosts[rank.host].name,
        ranks_.size() > 1 ? "; the others wait for it" : "");
  }
}

void Supervisor::check_init(Moment now) {
  const auto late = ending_.late_for_init(now);
  if (late && !init_was_said_) say("{}", *late);
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
    say("{}", reason);
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
    if (hosts_[host].state != HostState::gone) send_to(host, message);
  }
}

std::string Supervisor::ranks_of(std::size_t host) const {
  std::vector<int> ranks;
  for (int rank = 0; is_rank(rank); ++rank) {
    if (ranks_[rank].host == host && !ending_.has_ended(rank)) ranks.push_back(rank);
  }
  return ranks.empty() ? "" : fmt::format("; its ranks: {}", fmt::join(ranks, ", "));
}

bool Supervisor::is_rank(int rank) const {
  return rank >= 0 && static_cast<std::size_t>(rank) < ranks_.size();
}

}  // namespace hora::launch
