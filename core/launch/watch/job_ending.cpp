#include "core/launch/watch/job_ending.h"

#include <hora/error.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "core/launch/control/child_process.h"
#include "core/launch/watch/ending.h"

namespace hora::launch {
namespace {

const SettingAssignment* find(std::span<const SettingAssignment> assignments,
                              std::string_view variable) {
  const auto found = std::ranges::find(assignments, variable, &SettingAssignment::variable);
  return found == assignments.end() ? nullptr : &*found;
}

}  // namespace

WaitLimits wait_limits(std::span<const SettingAssignment> flags,
                       std::span<const SettingAssignment> environment) {
  constexpr std::array<std::string_view, 3> kNeeded = {"HORA_STALL_WARNING", "HORA_INIT_TIMEOUT",
                                                       "HORA_TIMEOUT"};
  Settings settings;
  for (const std::string_view variable : kNeeded) {
    const SettingAssignment* assignment = find(flags, variable);
    if (assignment == nullptr) assignment = find(environment, variable);
    if (assignment == nullptr) continue;
    try {
      const Settings read = parse_settings(std::span(assignment, 1));
      if (variable == kNeeded[0]) settings.stall_warning = read.stall_warning;
      if (variable == kNeeded[1]) settings.init_timeout = read.init_timeout;
      if (variable == kNeeded[2]) settings.timeout = read.timeout;
    } catch (const Error&) {  // hora::init says what is wrong
    }
  }
  return {settings.stall_warning, settings.init_timeout, settings.timeout};
}

namespace {

constexpr std::size_t kMostOutputKept = 8000;
constexpr std::size_t kMostNamed = 4;

/// "0, 1, 2".
std::string list_of(const std::vector<std::size_t>& ranks) {
  std::string text;
  for (const std::size_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

}  // namespace

JobEnding::JobEnding(std::size_t ranks, EndingLimits limits) : limits_(limits), ranks_(ranks) {}

void JobEnding::on_rank_started(const RankStarted& started, const std::string& host) {
  Rank& rank = at(started.rank);
  rank.started = true;
  rank.pid = started.pid;
  rank.host = host;
}

void JobEnding::on_rank_waits(const RankWaits& waits, Moment now) {
  const auto since = [now](bool inside) { return inside ? std::optional(now) : std::nullopt; };
  at(waits.rank).initializing_since = since(waits.initializing);
  at(waits.rank).in_shutdown_since = since(waits.in_shutdown);
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

/// Of mpirun or a daemon; their ranks end with them. After the last rank it means nothing.
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
  std::vector<std::size_t> late, waiting;
  bool is_overdue = false;
  for (std::size_t number = 0; number < ranks_.size(); ++number) {
    const Rank& rank = ranks_[number];
    if (!rank.started || rank.ended_at) continue;
    if (rank.initializing_since) {
      waiting.push_back(number);
      is_overdue = is_overdue || now - *rank.initializing_since >= limit;
    } else {
      late.push_back(number);
    }
  }
  if (!is_overdue || limit.count() == 0) return std::nullopt;
  if (late.empty()) {
    return "every rank that runs is still inside hora::init: is one of them stopped, or the "
           "network between "
           "their hosts blocked? --network-interfaces names the one to use";
  }
  return named(late) + (late.size() == 1 ? " has" : " have") +
         " not called hora::init, in which other ranks wait: " + list_of(waiting);
}

/// "rank 3 (host b, pid 4711), rank 5 (host c, pid 4712)"; of many the first ones.
std::string JobEnding::named(const std::vector<std::size_t>& ranks) const {
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) {
    const Rank& rank = ranks_[ranks[i]];
    text += (i == 0 ? "rank " : ", rank ") + std::to_string(ranks[i]) + " (host " + rank.host +
            ", pid " + std::to_string(rank.pid) + ")";
  }
  if (ranks.size() <= kMostNamed) return text;
  return text + " and " + std::to_string(ranks.size() - kMostNamed) + " more";
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
  return EndCause{*late + "; longer than HORA_INIT_TIMEOUT allows, " +
                      std::to_string(timeout.count() / 1000) + " s",
                  1};
}

/// A rank that computes may take as long as it likes while others wait there.
std::optional<EndCause> JobEnding::cause_in_shutdown(Moment now) const {
  const Moment limit = limits_.waits.stopped;
  if (limit.count() == 0 || first_failure_) return std::nullopt;
  std::vector<std::size_t> stopped, waiting;
  bool is_overdue = false;
  for (std::size_t number = 0; number < ranks_.size(); ++number) {
    const Rank& rank = ranks_[number];
    if (rank.stopped_since) {
      if (now - *rank.stopped_since >= limit) stopped.push_back(number);
    } else if (rank.in_shutdown_since) {
      waiting.push_back(number);
      is_overdue = is_overdue || now - *rank.in_shutdown_since >= limit;
    }
  }
  if (stopped.empty() || !is_overdue) return std::nullopt;
  return EndCause{
      named(stopped) + (stopped.size() == 1 ? " is" : " are") +
          " stopped (SIGSTOP or SIGTSTP), and other ranks wait in shutdown(): " + list_of(waiting) +
          "; longer than HORA_TIMEOUT allows, " + std::to_string(limit.count() / 1000) + " s",
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
