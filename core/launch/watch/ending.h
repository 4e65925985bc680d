/// How ranks ended, in words, which of them ended the job, and when that is known. Thread rule:
/// pure.
#pragma once

#include <hora/settings.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/launch/control/channel.h"

namespace hora::launch {

/// Whether the rank has ended as it should: exit status 0, and, if it has called hora::init, with
/// hora shut down.
bool ended_well(const RankEnded& ended);

/// As a shell has it: the exit status, or 128 and the signal; 1 for a rank that left with 0 and
/// without shutting hora down.
int exit_status(const RankEnded& ended);

/// "rank 3 (host b, pid 4711) was killed by signal 9 (SIGKILL) 12.3 s after start, in epoch 2:
/// ...". `where` stands before its error and last words.
std::string ending_text(const RankEnded& ended, const std::string& host,
                        const std::string& where = {});

/// ending_text() of the first cause. An error that is another rank's comes before the ranks that
/// ended by it: "rank 3 did not come to tensor "g" within 60 s...; ranks 0-2 ended the job, 61.3 s
/// after its start".
std::string first_cause_text(std::span<const RankEnded> ended, const RankEnded& first,
                             const std::string& host, const std::string& where = {});

/// "signal 9 (SIGKILL)".
std::string signal_text(int number);
/// Describes the status that waitpid() gives: "ended with exit status 3".
std::string status_text(int status);

/// Whether it ended as what follows from another's end: its error is another rank's, it was asked
/// to end before it had one, what started it has ended, or it wrote to a peer that was gone
/// (SIGPIPE).
bool is_likely_consequence(const RankEnded& ended);

/// The index of the one that is the first cause; those that ended well are none. Before the likely
/// consequences come signals, then exit statuses (peers report errors of their own after one has
/// gone); among equals the earliest.
std::optional<std::size_t> first_cause(std::span<const RankEnded> ended);

/// The rank of which Open MPI says in its output that it has left without MPI_Init while others
/// called it; -1: it says so of none.
int rank_that_left_before_init(std::string_view output);

/// Returns "; MPI did not start: ..." where Open MPI's output says that MPI_Init has failed;
/// empty where it says nothing of that.
std::string failed_mpi_init(std::string_view output);

/// Since any fixed time.
using Moment = std::chrono::milliseconds;

/// Limits of ranks that wait for others; 0: none.
struct WaitLimits {
  Moment init_warning{10000};  ///< in hora::init
  Moment init{300000};         ///< likewise
  Moment stopped{60000};       ///< in shutdown(), for one that is stopped
};

/// As the ranks' settings have it (HORA_STALL_WARNING, HORA_INIT_TIMEOUT, HORA_TIMEOUT): the flags'
/// come before the environment's. What is wrong in them is the ranks' error. Pure.
WaitLimits wait_limits(std::span<const SettingAssignment> flags,
                       std::span<const SettingAssignment> environment);

struct EndingLimits {
  Moment gather{500};  ///< time for other ranks to say that they were the first to end
  Moment gather_consequences{2000};  ///< the same where all that ended did as if another had failed
  Moment init_alone{5000};   ///< others are inside hora::init, which a rank has left for good
  Moment mpirun_exit{5000};  ///< from the last rank's end to mpirun's
  WaitLimits waits = {};
};

struct EndCause {
  std::string text;
  int status;  ///< for horarun to end with
};

/// Gathers what of a job has ended, and finds the first cause: a state machine, whose events come
/// with their time.
class JobEnding {
 public:
  JobEnding(std::size_t ranks, EndingLimits limits);

  // Events. A rank is one of the job's.
  void on_rank_started(const RankStarted& started, const std::string& host);
  void on_rank_seen(const RankSeen& seen, Moment now);
  void on_rank_stopped(int rank, bool stopped, Moment now);
  void on_rank_ended(const RankEnded& ended, const std::string& host, Moment now);
  void on_output(std::string_view text);  ///< of mpirun and MPI's daemons
  void on_mpirun_ended(int status, Moment now);
  /// MPI's daemon on a host; `ranks` says which were there. Only what a signal has ended counts.
  void on_daemon_ended(int status, const std::string& host, const std::string& ranks, Moment now);

  /// The first cause of a failure, as soon as no earlier one is to be expected.
  std::optional<EndCause> cause(Moment now) const;
  /// Who has not called hora::init, in which other ranks wait for longer than its limit: for a
  /// warning.
  std::optional<std::string> late_for_init(Moment now) const;
  /// All ranks have ended, and none has failed; mpirun, too, or it takes too long.
  bool is_over(Moment now) const;

  /// The exit status other than 0 with which all ranks have left after hora::shutdown; one that was
  /// asked to end may have been killed after that.
  std::optional<int> common_status() const;

  bool has_started(int rank) const { return at(rank).started; }
  bool has_ended(int rank) const { return at(rank).ended_at.has_value(); }
  std::optional<Moment> stopped_since(int rank) const { return at(rank).stopped_since; }
  const std::string& output() const noexcept { return output_; }  ///< its end

 private:
  struct Rank {
    bool started = false;
    std::int64_t pid = 0;
    std::optional<Moment> initializing_since = {};
    /// It runs, and waits in shutdown().
    std::optional<Moment> in_shutdown_since = {};
    std::optional<Moment> stopped_since = {};
    std::optional<Moment> ended_at = {};
    std::string host = {};
  };
  struct Killed {
    std::string text;
    int status;  ///< as wait() gives it
    Moment time;
  };
  const Rank& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  bool all_ended() const;
  bool may_be_consequences() const;
  bool was_killed() const;
  bool may_follow(const RankEnded& ended, const Killed& killed) const;
  EndCause cause_of(const RankEnded& ended, const std::string& where) const;
  EndCause left_before_init(const RankEnded& left) const;
  std::optional<std::string> late_for_init(Moment now, Moment limit) const;
  std::string named(const std::vector<std::size_t>& ranks) const;
  template <class Which>
  std::vector<std::size_t> those(const Which& which) const {
    std::vector<std::size_t> ranks;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (which(ranks_[rank])) ranks.push_back(rank);
    }
    return ranks;
  }
  const RankEnded* left_without_init() const;
  std::optional<EndCause> cause_in_init(Moment now) const;
  std::optional<EndCause> cause_in_shutdown(Moment now) const;
  std::optional<EndCause> cause_in_ranks(Moment now) const;
  EndCause cause_in_mpis_request() const;
  std::optional<EndCause> cause_in_mpirun(Moment now) const;

  EndingLimits limits_;
  std::vector<Rank> ranks_;
  std::vector<RankEnded> ended_;
  std::string output_;
  std::optional<int> mpirun_status_;
  std::optional<Moment> mpirun_ended_, last_rank_ended_;
  std::optional<Moment> first_failure_;  ///< of a rank
  std::optional<Killed> killed_;         ///< mpirun, or a daemon of MPI's: by a signal
};

}  // namespace hora::launch
