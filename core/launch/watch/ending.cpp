#include "core/launch/watch/ending.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <tuple>

#include "core/base/text.h"
#include "core/flight/record_reader.h"
#include "core/launch/control/system.h"

namespace hora::launch {
namespace {

using internal::RecordState;

constexpr int kTemporaryFailure = 75;  // sysexits.h
constexpr std::size_t kMostOutputKept = 8000;
constexpr std::size_t kMostNamedRanks = 4;

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

bool ended_well(const RankEnded& ended) {
  return ended.failure.empty() && WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0 &&
         (!ended.initialized || ended.shut_down);
}

int exit_status(const RankEnded& ended) {
  const int status = shell_status(ended.status);
  return status == 0 && !ended_well(ended) ? 1 : status;
}

std::string signal_text(int number) {
  const char* name = ::sigabbrev_np(number);
  return fmt::format("signal {}{}", number, name == nullptr ? "" : fmt::format(" (SIG{})", name));
}

std::string status_text(int status) {
  if (WIFSIGNALED(status)) return "was killed by " + signal_text(WTERMSIG(status));
  const int number = WEXITSTATUS(status);
  return fmt::format("ended with exit status {}{}", number,
                     number == kTemporaryFailure ? " (EX_TEMPFAIL: it can be started again)" : "");
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

int rank_that_left_before_init(std::string_view output) {
  constexpr std::string_view kStart = "due to process rank ";
  const auto start = output.find(kStart);
  if (start == output.npos || output.find("exiting improperly") == output.npos) return -1;
  const std::string_view rest = output.substr(start + kStart.size());
  int rank = -1;
  std::from_chars(rest.data(), rest.data() + rest.size(), rank);
  return rank;
}

std::string failed_mpi_init(std::string_view output) {
  if (output.find("MPI_INIT failed") == output.npos) return {};
  const auto line_after = [&](std::string_view name) {
    const auto start = std::min(output.find(name), output.size() - name.size()) + name.size();
    return printable(output.substr(start, output.find('\n', start) - start));
  };
  if (output.find("\nComponent: ") == output.npos) {
    return "; MPI did not start: --verbose shows why";
  }
  return fmt::format("; MPI did not start: it has no component \"{}\" (--mca {})",
                     line_after("\nComponent: "), line_after("\nFramework: "));
}

std::optional<std::size_t> first_cause(std::span<const RankEnded> ended) {
  std::optional<std::size_t> first;
  const auto key = [&](std::size_t i) { return std::tuple(order_of(ended[i]), time_of(ended[i])); };
  for (std::size_t i = 0; i < ended.size(); ++i) {
    if (!ended_well(ended[i]) && (!first || key(i) < key(*first))) first = i;
  }
  return first;
}

WaitLimits wait_limits(std::span<const SettingAssignment> flags,
                       std::span<const SettingAssignment> environment) {
  WaitLimits limits;
  const auto take = [&](const char* variable, auto Settings::*setting, Moment& limit) {
    for (const auto assignments : {flags, environment}) {
      const auto found = std::ranges::find(assignments, variable, &SettingAssignment::variable);
      if (found == assignments.end()) continue;
      try {
        limit = parse_settings(std::span(&*found, 1)).*setting;
      } catch (const Error&) {  // hora::init says what is wrong
      }
      return;
    }
  };
  take("HORA_STALL_WARNING", &Settings::stall_warning, limits.init_warning);
  take("HORA_INIT_TIMEOUT", &Settings::init_timeout, limits.init);
  take("HORA_TIMEOUT", &Settings::timeout, limits.stopped);
  return limits;
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
  killed_ = {"host " + host + ": MPI's daemon there " + status_text(status) + ranks, status, now};
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
    return EndCause{killed_->text, shell_status(killed_->status)};
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
  for (const std::size_t rank : std::span(ranks).first(std::min(ranks.size(), kMostNamedRanks))) {
    names.push_back(
        fmt::format("rank {} (host {}, pid {})", rank, ranks_[rank].host, ranks_[rank].pid));
  }
  const std::size_t more = ranks.size() - names.size();
  return fmt::format("{}{}", fmt::join(names, ", "),
                     more == 0 ? "" : fmt::format(" and {} more", more));
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

std::optional<EndCause> JobEnding::cause_in_ranks(Moment now) const {
  const bool consequences = may_be_consequences();
  const Moment gather = consequences ? limits_.gather_consequences : limits_.gather;
  const bool no_more_comes = all_ended() && mpirun_ended_;
  if (!first_failure_ || (now - *first_failure_ < gather && !no_more_comes)) return std::nullopt;
  const RankEnded& culprit = ended_[*first_cause(ended_)];
  const auto left =
      std::ranges::find(ended_, rank_that_left_before_init(output_), &RankEnded::rank);
  if (is_likely_consequence(culprit) && left != ended_.end()) return left_before_init(*left);
  if (culprit.asked_by_mpi && is_likely_consequence(culprit) && !culprit.peer_failed) {
    return cause_in_mpis_request();
  }
  return cause_of(culprit, culprit.initialized ? "" : failed_mpi_init(output_));
}

/// mpirun does so at a signal, of which it says nothing, and where it has lost a daemon.
EndCause JobEnding::cause_in_mpis_request() const {
  const std::string ranks = "told its ranks to end, none of which had failed";
  if (output_.find("lost communication") != output_.npos) {
    return {"mpirun " + ranks + ":\n" + output_, 1};
  }
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
  return {first_cause_text(ended_, ended, at(ended.rank).host, where), exit_status(ended)};
}

EndCause JobEnding::left_before_init(const RankEnded& left) const {
  EndCause cause =
      cause_of(left, ", before it called hora::init, in which the others waited for it");
  cause.status = std::max(1, cause.status);
  return cause;
}

}  // namespace hora::launch
