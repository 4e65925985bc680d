#include "core/launch/supervisor/supervisor.h"

#include <fmt/ranges.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "core/base/process.h"
#include "core/base/text.h"
#include "core/flight/flight_recorder.h"
#include "core/launch/command/command.h"
#include "core/launch/guard/guard.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

constexpr double kClockLimit = 1;  // seconds
constexpr std::size_t kMostNamedHosts = 8;

std::string in_mib(std::uint64_t bytes) {
  return fmt::format("{} MiB", bytes >> 20);
}

/// "its 4 ranks need 32 MiB".
std::string need_of(const PreparedHost& host, std::uint64_t bytes) {
  return host.ranks == 1 ? "its rank needs " + in_mib(bytes)
                         : fmt::format("its {} ranks need {}", host.ranks, in_mib(bytes));
}

constexpr std::uint32_t kMpirun = 0;
/// Agents end what runs, and say goodbye, within this after the grace.
constexpr Moment kAgentsEnd{6000};
constexpr Moment kStoppedWarning{1000};
/// Time from hora::init until a generation is named that has not loaded.
constexpr Moment kRecoveryWarning{30000};
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

using internal::RecordState;

constexpr std::size_t kMostOutputKept = 8000;
constexpr std::size_t kMostNamedRanks = 4;

constexpr int kLastOrder = 4;

/// 0 is the likeliest first cause. MPI ends ranks by SIGTERM, or by the end of what has started
/// their guards, but no guard. SIGPIPE comes from writing to a peer that has gone.
int order_of(const RankEnded& ended) {
  if (ended.peer_failed) return 2;
  const bool failed_before = !ended.cause.empty() && ended.cause_ns < ended.asked_ns;
  if (ended.asked_ns != 0) return failed_before ? 1 : 3;
  if (ended.guard_killed) return 0;
  if (!ended.failure.empty()) return ended.pid == 0 ? 0 : 2;
  if (WIFSIGNALED(ended.status)) return WTERMSIG(ended.status) == SIGPIPE ? 2 : 0;
  return 1;
}

/// Since 1970, in nanoseconds: when it first knew of the failure.
std::int64_t time_of(const RankEnded& ended) {
  return ended.cause_ns != 0 ? std::min(ended.cause_ns, ended.ended_ns) : ended.ended_ns;
}

std::string in_one_line(const std::string& text) {
  std::string line;
  for (const char character : text) {
    if (character == '\n') {
      line += " | ";
    } else if (static_cast<unsigned char>(character) >= ' ' || character == '\t') {
      line += character;
    }
  }
  return line;
}

std::string when_text(const RankEnded& ended) {
  return fmt::format(", {:.1f} s after its start{}", static_cast<double>(ended.lived_ms) / 1000,
                     ended.phase.empty() ? "" : ", in " + in_one_line(ended.phase));
}

}  // namespace

std::size_t total_ranks(const JobPlan& plan) {
  std::size_t ranks = 0;
  for (const JobHost& host : plan.hosts) ranks += static_cast<std::size_t>(host.ranks);
  return ranks;
}

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
      hosts.front().name, first_of(std::move(differences), kMostNamedHosts));
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
  for (auto& [cores, names] : groups)
    texts.push_back(first_of(std::move(names), kMostNamedHosts) + ": " + cores);
  return fmt::format("cores: {}", fmt::join(texts, "; "));
}

std::string tried_text(std::span<const std::string> command) {
  if (command.empty()) return {};
  return "; tried: " + as_shell_line({{command.begin(), command.end()}, {}});
}

std::string start_advice(const LostAgent& lost, std::span<const std::string> command) {
  constexpr int kCannotExecute = 126, kNotFound = 127;
  const bool is_local = command.size() == 2;  // the agent itself
  if (command.empty() || is_local) return tried_text(command);
  const int status = lost.status && WIFEXITED(*lost.status) ? WEXITSTATUS(*lost.status) : -1;
  std::string advice =
      "ssh must log in there without a question: is the name right, the host up, its sshd "
      "reachable, this user's key there? --ssh-port and --ssh-identity-file name others";
  if (!lost.status) {
    advice = fmt::format("install {} on this host", command.front());
  } else if (status == kNotFound || status == kCannotExecute) {
    advice =
        "horarun must be there under this very path, with its libraries: install hora on that "
        "host, too, or in a folder that all hosts share";
  } else if (command.front() == "srun") {
    advice = "is the node up (sinfo), and is this job's allocation still there?";
  }
  return fmt::format("{}; {}", tried_text(command), advice);
}

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
  hosts_[host].prepared = {.name = plan_.hosts[host].name,
                           .ranks = plan_.hosts[host].ranks,
                           .version = hello.version,
                           .architecture = hello.architecture,
                           .answer = {}};
  prepare(host, now);
}

void Supervisor::prepare(std::size_t host, Moment now) {
  hosts_[host].state = HostState::preparing;
  hosts_[host].prepared.asked = now;
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
    prepare_again_ = plan_.generation > 1 && now - start_ < plan_.release;
    if (prepare_again_) return;
    return fail(fmt::format("{}", fmt::join(problems, "\n")), kUnavailable, now);
  }
  started_ = true;
  if (const auto warning = clock_warning(hosts)) say("{}", *warning);
  if (ranks_.size() > 1) actions_.push_back(Say{cores_line(hosts), plan_.generation > 1});
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
  actions_.push_back(Say{network_->line, ranks_.size() == 1 || plan_.generation > 1});
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
  std::vector<std::string> cut, lost;
  for (auto& [pair, missed] : missed_) {
    if (joined.contains(pair) || ++missed < kMissedOfCut) continue;
    lost.push_back(plan_.hosts[pair.second].name);
    cut.push_back(plan_.hosts[pair.first].name + " and " + plan_.hosts[pair.second].name);
  }
  if (cut.empty()) return;
  lose({.text = fmt::format("hosts {} reach each other no more over the ranks' {}, though their "
                            "agents answer: is a link, a switch or a firewall between them down?",
                            first_of(std::move(cut), kMostPairs), network_->line),
        .hosts = std::move(lost)},
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
  send_all(SignalRanks{{}, signalled.number, signalled.rank});
}

void Supervisor::on(std::size_t, const RankSeen& seen, Moment now) {
  if (!is_rank(seen.rank)) return;
  ranks_[seen.rank].overdue = seen.overdue;
  const bool runs = seen.state == static_cast<int>(internal::RecordState::initialised);
  if (runs && !has_run_) running_since_ = now;
  has_run_ |= runs;
  ending_.on_rank_seen(seen, now);
  resumable_ = std::max(resumable_, seen.resumable);
  note_resumed(seen.resumed, now);
}

void Supervisor::on(std::size_t host, const GenerationEnded&, Moment now) {
  if (!end_limit_) return;  // the one before
  hosts_[host].state = HostState::ended;
  check_end(now);
}

void Supervisor::on(std::size_t host, const RankEnded& ended, Moment now) {
  if (!is_rank(ended.rank)) return;
  ranks_[ended.rank].host = host;
  if (!ended.record_failure.empty() && !std::exchange(lost_record_was_said_, true)) {
    say("no flight record of rank {} (host {}): {}", ended.rank, plan_.hosts[host].name,
        ended.record_failure);
  }
  resumable_ = std::max(resumable_, ended.resumable);
  ending_.on_rank_ended(ended, plan_.hosts[host].name, now);
}

std::vector<Instruction> Supervisor::on_lost(std::size_t host, const LostAgent& lost, Moment now) {
  if (hosts_[host].state == HostState::gone) return {};
  const bool connected =
      std::exchange(hosts_[host].state, HostState::gone) != HostState::connecting;
  if (!end_limit_) {
    const JobHost& plan = plan_.hosts[host];
    lose_host(host,
              fmt::format("host {}: {}{}{}{}", plan.name,
                          connected ? "its agent has ended" : "no agent could be started there",
                          lost.how.empty() ? "" : fmt::format(" ({})", lost.how), ranks_of(host),
                          connected ? "" : start_advice(lost, plan.agent_command)),
              now);
  }
  check_end(now);
  return take();
}

std::vector<Instruction> Supervisor::on_signal(int number, Moment now) {
  if (number == SIGUSR1 || number == SIGUSR2) {
    send_all(SignalRanks{{}, number});
    return take();
  }
  if (loss_) say("{}", loss_->text);
  loss_.reset();
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

std::vector<Instruction> Supervisor::give_way(const std::string& reason) {
  if (reason_to_give_way_.empty() && !end_limit_) send_all(GiveWay{});
  reason_to_give_way_ = reason;
  return take();
}

std::vector<Instruction> Supervisor::on_time(Moment now) {
  if (!end_limit_) {
    if (std::exchange(prepare_again_, false)) {
      for (std::size_t host = 0; host < hosts_.size(); ++host) prepare(host, now);
    }
    check_start(now);
    check_silence(now);
    check_stopped(now);
    check_init(now);
    check_network(now);
    check_recovery(now);
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
    const std::string names = fmt::format("{}", fmt::join(missing, ", "));
    return lose({.text = fmt::format("no answer within {} s from {}{}; --start-timeout gives them "
                                     "more time",
                                     limit, names, tried),
                 .hosts = std::move(missing)},
                kUnavailable, now);
  }
  std::vector<int> ranks;
  for (int rank = 0; is_rank(rank); ++rank) {
    if (!ending_.has_started(rank)) ranks.push_back(rank);
  }
  if (ranks.empty()) return;
  lose({.text = fmt::format(
            "mpirun has not started the ranks {} within {} s; --start-timeout gives them more "
            "time{}{}",
            fmt::join(ranks, ", "), limit, ending_.output().empty() ? "" : "\n", ending_.output())},
       kUnavailable, now);
}

void Supervisor::check_silence(Moment now) {
  for (std::size_t host = 0; host < hosts_.size() && !end_limit_; ++host) {
    const Host& each = hosts_[host];
    if (each.state != HostState::preparing && each.state != HostState::ready) continue;
    if (now - each.last_heard < plan_.silence) continue;
    lose_host(
        host,
        fmt::format("host {} has not been heard from for {} s: it hangs, or the network to "
                    "it is cut{}",
                    plan_.hosts[host].name, (now - each.last_heard).count() / 1000, ranks_of(host)),
        now);
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
    if (auto cause = ending_.cause(now)) {
      Loss loss{.text = std::move(cause->text), .rank = cause->rank};
      if (!cause->host.empty()) loss.hosts.push_back(std::move(cause->host));
      if (!reason_to_give_way_.empty() && cause->status == internal::kGaveWay) {
        loss = {.text = reason_to_give_way_};
      }
      lose(std::move(loss), cause->status, now);
    }
  }
  if (!end_limit_ && ending_.is_over(now)) end_all(Moment(0), SIGTERM, now);
  if (!end_limit_) return;
  // A host that is silent ends by itself what runs there.
  const auto is_gone = [&](const Host& host) {
    return host.state == HostState::gone || host.state == HostState::ended ||
           host.state == HostState::connecting || now - host.last_heard >= plan_.silence;
  };
  if (!std::ranges::all_of(hosts_, is_gone) && now < *end_limit_) return;
  finished_ = true;
  // Ranks that were told to end and have agreed on how they leave.
  const auto agreed = interrupts_ == 1 ? ending_.common_status() : std::nullopt;
  // A host that could not end its ranks is not to have others.
  for (std::size_t host = 0; loss_ && host < hosts_.size(); ++host) {
    const std::string& name = plan_.hosts[host].name;
    const bool is_known = std::ranges::find(loss_->hosts, name) != loss_->hosts.end();
    const bool has_ended =
        hosts_[host].state == HostState::ended || hosts_[host].state == HostState::connecting;
    if (!has_ended && !is_known) loss_->hosts.push_back(name);
  }
  actions_.push_back(Finish{agreed.value_or(status_), std::move(loss_)});
}

void Supervisor::lose(Loss loss, int status, Moment now) {
  if (!plan_.elastic || std::exchange(caused_, true)) return fail(loss.text, status, now);
  status_ = status;
  loss_ = std::move(loss);
  loss_->step = loss_->reached = resumable_;
  if (plan_.recovery) {
    loss_->reached = std::max(resumable_, plan_.recovery->step);
    loss_->text = fmt::format("{}; then {}", plan_.recovery->cause, loss_->text);
  }
  end_all(Moment(0), SIGKILL, now);
}

void Supervisor::lose_host(std::size_t host, std::string reason, Moment now) {
  lose({.text = std::move(reason), .hosts = {plan_.hosts[host].name}}, kUnavailable, now);
}

void Supervisor::note_resumed(std::int64_t step, Moment now) {
  if (step < 0 || !plan_.recovery) return;
  std::vector<std::string> names;
  for (const JobHost& host : plan_.hosts) {
    if (host.ranks > 0) names.push_back(host.name);
  }
  const std::int64_t lost = std::max<std::int64_t>(plan_.recovery->step - step, 0);
  say("generation {}: {}; {} rank{} on {} go{} on at step {} after {:.1f} s{}", plan_.generation,
      plan_.recovery->cause, ranks_.size(), ranks_.size() == 1 ? "" : "s",
      first_of(std::move(names), kMostNamedHosts), ranks_.size() == 1 ? "es" : "", step,
      static_cast<double>((now - plan_.recovery->lost).count()) / 1000,
      plan_.recovery->step < 0 ? "" : fmt::format(", {} step{} lost", lost, lost == 1 ? "" : "s"));
  plan_.recovery.reset();
}

void Supervisor::check_recovery(Moment now) {
  if (!plan_.recovery || !running_since_ || now - *running_since_ < kRecoveryWarning) return;
  running_since_.reset();
  say("generation {}: {}; its ranks have not called Checkpoint::load() for {} s, without which the "
      "training begins anew",
      plan_.generation, plan_.recovery->cause, kRecoveryWarning.count() / 1000);
}

void Supervisor::fail(const std::string& reason, int status, Moment now) {
  if (!std::exchange(caused_, true)) {
    status_ = status;
    say("{}", reason);
  }
  end_all(plan_.grace, SIGTERM, now);
}

void Supervisor::end_all(Moment grace, int signal, Moment now) {
  send_all(
      EndAll{{}, static_cast<std::uint32_t>(grace.count()), signal, status_, loss_.has_value()});
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

int exit_status(const RankEnded& ended) {
  const int status = shell_status(ended.status);
  return status == 0 && !ended_well(ended) ? 1 : status;
}

std::string ending_text(const RankEnded& ended, const std::string& host, const std::string& where) {
  if (ended.pid == 0) {
    return fmt::format("rank {} (host {}) could not be started: {}", ended.rank, host,
                       ended.failure);
  }
  std::string text =
      fmt::format("rank {} (host {}, pid {}) {}{}", ended.rank, host, ended.pid,
                  ended.failure.empty() ? status_text(ended.status) : "was ended: " + ended.failure,
                  when_text(ended));
  if (WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0 && !ended_well(ended)) {
    text += ended.cause.empty() ? ", without hora::shutdown, in which ranks wait for each other"
                                : ", after hora had failed";
  }
  text += where;
  if (ended.out_of_memory) {
    text +=
        "; the kernel has killed it for lack of memory (oom_kill of its cgroup has grown): start "
        "fewer ranks on this host, or raise the limit (docker run --memory, sbatch --mem)";
  }
  if (ended.cause.empty()) {
    if (!ended.last_words.empty()) text += "; last words: " + in_one_line(ended.last_words);
    return text;
  }
  text += "; its first error: " + in_one_line(ended.cause);
  // main() may have said more of an exception that it caught.
  const std::string last = ended.last_words.substr(ended.last_words.rfind('\n') + 1);
  const bool is_new = WIFEXITED(ended.status) && ended.cause.find(last) == ended.cause.npos &&
                      last.find(ended.cause) == last.npos;
  return is_new ? text + "; last words: " + in_one_line(last) : text;
}

std::string first_cause_text(std::span<const RankEnded> ended, const RankEnded& first,
                             const std::string& host, const std::string& where) {
  if (!first.peer_failed) return ending_text(first, host, where);
  std::set<int> ranks{first.rank};
  for (const RankEnded& each : ended) {
    if (each.peer_failed && each.asked_ns == 0) ranks.insert(each.rank);
  }
  return fmt::format("{}; {} ended the job{}", in_one_line(first.cause),
                     internal::named_ranks(std::vector<int>(ranks.begin(), ranks.end())),
                     when_text(first));
}

bool is_likely_consequence(const RankEnded& ended) {
  return order_of(ended) >= 2;
}

std::optional<std::size_t> first_cause(std::span<const RankEnded> ended) {
  std::optional<std::size_t> first;
  std::int64_t request = std::numeric_limits<std::int64_t>::max();  // MPI's, to end
  for (const RankEnded& each : ended) {
    if (each.asked_by_mpi) request = std::min(request, each.asked_ns);
  }
  const auto key = [&](std::size_t i) {
    const RankEnded& each = ended[i];
    // Open MPI 5's daemon may be gone before it asks its own ranks, whose MPI then exits.
    const bool is_of_mpi = each.cause.empty() && request < each.ended_ns;
    const int order = order_of(each);
    return std::tuple(order == 1 && is_of_mpi ? kLastOrder : order, time_of(each));
  };
  for (std::size_t i = 0; i < ended.size(); ++i) {
    if (!ended_well(ended[i]) && (!first || key(i) < key(*first))) first = i;
  }
  return first;
}

JobEnding::JobEnding(std::size_t ranks, EndingLimits limits) : limits_(limits), ranks_(ranks) {}

void JobEnding::on_rank_started(const RankStarted& started, const std::string& host) {
  Rank& rank = at(started.rank);
  rank.started = true;
  rank.pid = started.pid;
  rank.host = host;
}

void JobEnding::on_rank_seen(const RankSeen& seen, Moment now) {
  const auto mark = [now](std::optional<Moment>& since, bool inside) {
    since = inside ? since.value_or(now) : std::optional<Moment>();
  };
  const auto is_in = [&](RecordState state) { return seen.state == static_cast<int>(state); };
  mark(at(seen.rank).initializing_since, is_in(RecordState::starting));
  mark(at(seen.rank).in_shutdown_since, is_in(RecordState::in_shutdown));
}

void JobEnding::on_rank_stopped(int number, bool stopped, Moment now) {
  Rank& rank = at(number);
  rank.stopped_since = stopped ? std::optional(now) : std::nullopt;
  // Where all ranks were stopped, it has waited for none meanwhile.
  if (!stopped && rank.in_shutdown_since) rank.in_shutdown_since = now;
}

void JobEnding::on_rank_ended(const RankEnded& ended, const std::string& host, Moment now) {
  at(ended.rank) = {.started = true, .pid = ended.pid, .ended_at = now, .host = host};
  ended_.push_back(ended);
  if (all_ended()) last_rank_ended_ = now;
  if (!ended_well(ended) && !first_failure_) first_failure_ = now;
}

void JobEnding::on_output(std::string_view text) {
  output_ += text;
  if (output_.size() > kMostOutputKept) output_.erase(0, output_.size() - kMostOutputKept);
}

void JobEnding::on_mpirun_ended(int status, Moment now) {
  mpirun_status_ = status;
  mpirun_ended_ = now;
  if (!WIFSIGNALED(status) || killed_) return;
  killed_ = {"mpirun " + status_text(status), status, now};
}

void JobEnding::on_daemon_ended(int status, const std::string& host, const std::string& ranks,
                                Moment now) {
  if (!WIFSIGNALED(status) || killed_) return;
  killed_ = {"host " + host + ": MPI's daemon there " + status_text(status) + ranks, status, now,
             host};
}

bool JobEnding::all_ended() const {
  return std::ranges::all_of(ranks_, [](const Rank& rank) { return rank.ended_at.has_value(); });
}

bool JobEnding::may_be_consequences() const {
  return std::ranges::all_of(ended_, [](const RankEnded& each) {
    return ended_well(each) || is_likely_consequence(each);
  });
}

/// Whether mpirun or a daemon was; their ranks end with them. After the last rank it means nothing.
bool JobEnding::was_killed() const {
  if (!killed_ || (!first_failure_ && all_ended())) return false;
  return std::ranges::all_of(ended_, [&](const RankEnded& each) {
    return ended_well(each) || is_likely_consequence(each) || may_follow(each, *killed_);
  });
}

/// Inside MPI_Init a rank exits by itself once its daemon is gone, and may be reported before that.
/// A daemon that crashes, in place of being killed, may do so because of the rank.
bool JobEnding::may_follow(const RankEnded& ended, const Killed& killed) const {
  const Moment slack = WIFEXITED(ended.status) ? limits_.gather : Moment(0);
  return WTERMSIG(killed.status) == SIGKILL && *at(ended.rank).ended_at + slack >= killed.time;
}

bool JobEnding::is_over(Moment now) const {
  const bool mpirun_is_late = last_rank_ended_ && now - *last_rank_ended_ >= limits_.mpirun_exit;
  return !first_failure_ && all_ended() && (mpirun_ended_ || mpirun_is_late);
}

std::optional<int> JobEnding::common_status() const {
  std::optional<int> common;
  for (const RankEnded& ended : ended_) {
    if (!ended.shut_down) return std::nullopt;
    if (!WIFEXITED(ended.status) && ended.asked_ns != 0) continue;
    const int status = shell_status(ended.status);
    if (status == 0 || status != common.value_or(status)) return std::nullopt;
    common = status;
  }
  return all_ended() ? common : std::nullopt;
}

std::optional<EndCause> JobEnding::cause(Moment now) const {
  if (auto found = cause_in_init(now)) return found;
  if (!was_killed()) {
    if (auto found = cause_in_ranks(now)) return found;
    if (auto found = cause_in_shutdown(now)) return found;
  } else if (now - killed_->time >= limits_.gather) {
    return EndCause{killed_->text, shell_status(killed_->status), -1, killed_->host};
  }
  return cause_in_mpirun(now);
}

std::optional<std::string> JobEnding::late_for_init(Moment now) const {
  if (left_without_init() != nullptr) return std::nullopt;  // the others wait for that one
  return late_for_init(now, limits_.waits.init_warning);
}

std::optional<std::string> JobEnding::late_for_init(Moment now, Moment limit) const {
  const auto runs = [](const Rank& rank) { return rank.started && !rank.ended_at; };
  const auto late = those([&](const Rank& rank) { return runs(rank) && !rank.initializing_since; });
  const auto waiting =
      those([&](const Rank& rank) { return runs(rank) && rank.initializing_since; });
  const bool is_overdue = std::ranges::any_of(
      waiting, [&](std::size_t rank) { return now - *ranks_[rank].initializing_since >= limit; });
  if (!is_overdue || limit.count() == 0) return std::nullopt;
  if (late.empty()) {
    return "every rank that runs is still inside hora::init: is one of them stopped, or the "
           "network between their hosts blocked? --network-interfaces names the one to use";
  }
  return fmt::format("{} {} not called hora::init, in which other ranks wait: {}", named(late),
                     late.size() == 1 ? "has" : "have", fmt::join(waiting, ", "));
}

/// "rank 3 (host b, pid 4711), rank 5 (host c, pid 4712)"; of many the first ones.
std::string JobEnding::named(const std::vector<std::size_t>& ranks) const {
  std::vector<std::string> names;
  for (const std::size_t rank : ranks) {
    names.push_back(
        fmt::format("rank {} (host {}, pid {})", rank, ranks_[rank].host, ranks_[rank].pid));
  }
  return first_of(std::move(names), kMostNamedRanks);
}

std::optional<EndCause> JobEnding::cause_in_init(Moment now) const {
  if (const RankEnded* left = left_without_init()) {
    const Moment since = *at(left->rank).ended_at;
    const auto waits = [&](const Rank& rank) {
      return rank.initializing_since &&
             now - std::max(since, *rank.initializing_since) >= limits_.init_alone;
    };
    if (std::ranges::none_of(ranks_, waits)) return std::nullopt;
    return left_before_init(*left);
  }
  const Moment timeout = limits_.waits.init;
  // hora's own error at that time, where it can tell, comes first.
  const Moment limit = timeout.count() == 0 ? timeout : timeout + limits_.gather_consequences;
  const auto late = late_for_init(now, limit);
  if (!late) return std::nullopt;
  return EndCause{
      fmt::format("{}; longer than HORA_INIT_TIMEOUT allows, {} s", *late, timeout.count() / 1000),
      1};
}

/// A rank that computes may take as long as it likes while others wait there.
std::optional<EndCause> JobEnding::cause_in_shutdown(Moment now) const {
  const Moment limit = limits_.waits.stopped;
  if (limit.count() == 0 || first_failure_) return std::nullopt;
  const auto stopped = those(
      [&](const Rank& rank) { return rank.stopped_since && now - *rank.stopped_since >= limit; });
  const auto waiting =
      those([](const Rank& rank) { return !rank.stopped_since && rank.in_shutdown_since; });
  const bool is_overdue = std::ranges::any_of(
      waiting, [&](std::size_t rank) { return now - *ranks_[rank].in_shutdown_since >= limit; });
  if (stopped.empty() || !is_overdue) return std::nullopt;
  return EndCause{
      fmt::format("{} {} stopped (SIGSTOP or SIGTSTP), and other ranks wait in shutdown(): {}; "
                  "longer than HORA_TIMEOUT allows, {} s",
                  named(stopped), stopped.size() == 1 ? "is" : "are", fmt::join(waiting, ", "),
                  limit.count() / 1000),
      1};
}

/// Null where no rank has ended so.
const RankEnded* JobEnding::left_without_init() const {
  const auto left = std::ranges::find_if(
      ended_, [](const RankEnded& each) { return ended_well(each) && !each.initialized; });
  return left == ended_.end() ? nullptr : &*left;
}

/// Wherever it has broken the line.
bool JobEnding::mpirun_said(std::string_view text) const {
  std::string output = output_;
  std::ranges::replace(output, '\n', ' ');
  return output.find(text) != output.npos;
}

std::optional<EndCause> JobEnding::cause_in_ranks(Moment now) const {
  const bool consequences = may_be_consequences();
  const Moment gather = consequences ? limits_.gather_consequences : limits_.gather;
  const bool no_more_comes = all_ended() && mpirun_ended_;
  if (!first_failure_ || (now - *first_failure_ < gather && !no_more_comes)) return std::nullopt;
  const RankEnded& culprit = ended_[*first_cause(ended_)];
  // Open MPI ends the others, and says so.
  const RankEnded* left = left_without_init();
  if (left != nullptr && is_likely_consequence(culprit) && mpirun_said("exiting improperly")) {
    return left_before_init(*left);
  }
  // It names a process of its own that somebody else has killed: Open MPI's words, and MPICH's.
  const bool names_a_killed_one = mpirun_said("exited on signal") || mpirun_said("(signal ");
  const bool ended_by_mpi =
      culprit.asked_by_mpi || (!culprit.failure.empty() && !names_a_killed_one);
  if (ended_by_mpi && is_likely_consequence(culprit) && !culprit.peer_failed) {
    return cause_in_mpis_request();
  }
  const bool no_mpi = !culprit.initialized && mpirun_said("MPI_INIT failed");
  return cause_of(culprit, no_mpi ? "; MPI did not start: --verbose shows why" : "");
}

/// mpirun does so at a signal, of which it says nothing, and where it has lost a daemon.
EndCause JobEnding::cause_in_mpis_request() const {
  const std::string ranks = "told its ranks to end, none of which had failed";
  if (mpirun_said("lost communication")) return {"mpirun " + ranks + ":\n" + output_, 1};
  return {"mpirun was ended by SIGTERM, SIGINT or SIGHUP: it " + ranks, 128 + SIGTERM};
}

/// It has ended before its ranks, by itself.
std::optional<EndCause> JobEnding::cause_in_mpirun(Moment now) const {
  if (!mpirun_ended_ || all_ended()) return std::nullopt;
  // A rank that has made mpirun end says so itself.
  const bool any_started = std::ranges::any_of(ranks_, &Rank::started);
  if (now - *mpirun_ended_ < (any_started ? limits_.gather_consequences : limits_.gather))
    return std::nullopt;
  std::string text = "mpirun " + status_text(*mpirun_status_);
  if (!any_started) {
    text += " before it started any rank";
    if (!output_.empty()) text += ":\n" + output_;
  }
  return EndCause{text, std::max(1, shell_status(*mpirun_status_))};
}

EndCause JobEnding::cause_of(const RankEnded& ended, const std::string& where) const {
  return {first_cause_text(ended_, ended, at(ended.rank).host, where), exit_status(ended),
          ended.rank};
}

EndCause JobEnding::left_before_init(const RankEnded& left) const {
  EndCause cause =
      cause_of(left, ", before it called hora::init, in which the others waited for it");
  cause.status = std::max(1, cause.status);
  return cause;
}

}  // namespace hora::launch
