/// Decides what horarun does with a job, as a state machine: what happens comes in, with the time;
/// what to send, to say, and how to end comes out; how ranks ended, in words, and which of them
/// ended the job. Thread rule: pure.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/launch/control/channel.h"
#include "core/launch/network/network.h"
#include "core/launch/supervisor/generation.h"

namespace hora::launch {

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

/// Whether it ended as what follows from another's end: its error is another rank's, it was asked
/// to end before it had one, what started it has ended, or it wrote to a peer that was gone
/// (SIGPIPE).
bool is_likely_consequence(const RankEnded& ended);

/// The index of the one that is the first cause; those that ended well are none. Before the likely
/// consequences come signals, then exit statuses (peers report errors of their own after one has
/// gone), but for those without an error after MPI has asked another rank to end; among equals the
/// earliest.
std::optional<std::size_t> first_cause(std::span<const RankEnded> ended);

/// Limits of ranks that wait for others, from HORA_STALL_WARNING, HORA_INIT_TIMEOUT and
/// HORA_TIMEOUT; 0: none.
struct WaitLimits {
  Moment init_warning{10000};  ///< in hora::init
  Moment init{300000};         ///< likewise
  Moment stopped{60000};       ///< in shutdown(), for one that is stopped
};

struct EndingLimits {
  Moment gather{500};  ///< time for other ranks to say that they were the first to end
  Moment gather_consequences{2000};  ///< the same where all that ended did as if another had failed
  Moment init_alone{5000};   ///< others are inside hora::init, which a rank has left for good
  Moment mpirun_exit{5000};  ///< from the last rank's end to mpirun's
  WaitLimits waits = {};
};

struct EndCause {
  std::string text;
  int status;             ///< for horarun to end with
  int rank = -1;          ///< that has failed by itself; -1: none
  std::string host = {};  ///< that is lost; empty: none
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
    std::string host = {};  ///< of a daemon
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
  bool mpirun_said(std::string_view text) const;
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

struct PreparedHost {
  std::string name;
  int ranks = 0;
  std::string version;       ///< of hora
  std::string architecture;  ///< as uname() has it
  Prepared answer;
  /// When the question was sent and the answer came, since any time that is the same for all hosts.
  std::chrono::milliseconds asked{0};
  std::chrono::milliseconds answered{0};
};

/// Needs of each rank before it has done anything, in bytes.
struct RankNeeds {
  std::uint64_t shared_memory = 0;  ///< in /dev/shm
  std::uint64_t memory = 0;
};

/// Lists what keeps the job from starting, one line each, which begins with the host: what its
/// agent has found, another version of hora than this, another architecture than the first host's,
/// too little memory or shared memory. Each says what was found, what is needed, and what to do.
std::vector<std::string> problems_of(std::span<const PreparedHost> hosts, const RankNeeds& needs);

/// A warning where clocks certainly differ from the first host's by more than a second: a host has
/// read its clock at some time between the question and the answer.
std::optional<std::string> clock_warning(std::span<const PreparedHost> hosts);

/// One line: which cores the ranks get, hosts of which the same is to be said together.
std::string cores_line(std::span<const PreparedHost> hosts);

/// How an agent was lost, as far as that is known.
struct LostAgent {
  std::string how = {};            ///< "ssh ended with exit status 255: Permission denied"
  std::optional<int> status = {};  ///< of the command that was to start it, as waitpid() gives it
};

/// "; tried: " and the command that was to start it, as a shell reads it; nothing where it was not
/// started by one.
std::string tried_text(std::span<const std::string> command);

/// tried_text(), and what to do: by how the command ended, as a shell there tells that it has not
/// found a program (126, 127; POSIX, Exit Status for Commands).
std::string start_advice(const LostAgent& lost, std::span<const std::string> command);

struct JobHost {
  std::string name;
  int ranks = 0;
  /// Starts its agent there, and carries its bytes; empty: it has been started, and connects.
  std::vector<std::string> agent_command = {};
};

/// A generation of an elastic job that follows another.
struct Recovery {
  std::string cause;
  Moment lost{0};          ///< when the one before it ended
  std::int64_t step = -1;  ///< the last from which a training could go on; -1: none is known
};

struct JobPlan {
  /// In order of their ranks. A host without ranks may be among them.
  std::vector<JobHost> hosts;
  std::size_t launcher_host = 0;  ///< where horarun and mpirun run
  Prepare preparation;            ///< without `ranks`
  RankNeeds needs = {};
  /// mpirun on the launcher's host, and the environment of the daemons on the others. The choice is
  /// that of a job of several hosts, else null. An error says what is wrong.
  std::function<tl::expected<Start, std::string>(const NetworkChoice*)> mpirun;
  std::function<std::vector<std::string>(std::size_t host, const NetworkChoice*)>
      daemon_environment;
  std::vector<std::string> network_interfaces = {};  ///< as the user has named them; empty: tried
  std::uint64_t nonce = 0;                           ///< random
  Moment start_timeout{30000};
  Moment silence{30000};         ///< a host that is not heard from for this long is lost
  Moment grace{2000};            ///< between the first signal and SIGKILL, after a failure
  Moment interrupt_grace{3500};  ///< the same after SIGINT, SIGHUP or SIGQUIT
  /// The same after SIGTERM, for ranks that save what they have done; as batch systems wait.
  Moment terminate_grace{30000};
  Moment network_trial{2000};  ///< for the hosts to try which networks reach the others
  Moment network_check{2000};  ///< between two trials of the chosen one, where ranks wait long
  EndingLimits ending = {};
  bool elastic = false;  ///< what it loses ends this generation alone (generation.h)
  int generation = 1;
  Moment release{5000};  ///< what the generation before had, as memory, is free after that
  std::optional<Recovery> recovery = {};
};

std::size_t total_ranks(const JobPlan& plan);

struct SendTo {
  std::size_t host;
  Message message;
};
/// A line for the user; or output of mpirun or a daemon, which follows from what was said.
struct Say {
  std::string text;
  bool verbose = false;  ///< only where --verbose is given
  bool is_output = false;
};
/// The hosts' agents have ended, or are given up: horarun ends with this status, or another
/// generation follows.
struct Finish {
  int status;
  std::optional<Loss> loss = {};  ///< of an elastic job that may go on
};
using Instruction = std::variant<SendTo, Say, Finish>;

class Supervisor {
 public:
  Supervisor(JobPlan plan, Moment now);

  /// A message from a host's agent.
  std::vector<Instruction> on_message(std::size_t host, const Message& message, Moment now);
  /// A host's agent is gone.
  std::vector<Instruction> on_lost(std::size_t host, const LostAgent& lost, Moment now);
  /// horarun itself was sent a signal.
  std::vector<Instruction> on_signal(int number, Moment now);
  /// The generation is to give way to another at its next commit, for this reason.
  std::vector<Instruction> give_way(const std::string& reason);
  /// Called at least ten times a second.
  std::vector<Instruction> on_time(Moment now);

 private:
  enum class HostState { connecting, preparing, ready, ended, gone };
  struct Host {
    HostState state = HostState::connecting;
    Moment last_heard{0};
    PreparedHost prepared = {};
  };
  struct Rank {
    std::size_t host = 0;
    bool stop_was_said = false;
    bool overdue = false;
  };

  void on(std::size_t host, const Hello& hello, Moment now);
  void on(std::size_t host, const Prepared& prepared, Moment now);
  void on(std::size_t host, const StartRemote& request, Moment now);
  void on(std::size_t host, const ProcessOutput& output, Moment now);
  void on(std::size_t host, const ProcessEnded& ended, Moment now);
  void on(std::size_t host, const RankStarted& started, Moment now);
  void on(std::size_t host, const RankStopped& stopped, Moment now);
  void on(std::size_t host, const RankSignalled& signalled, Moment now);
  void on(std::size_t host, const RankSeen& seen, Moment now);
  void on(std::size_t host, const NetworkTold& told, Moment now) { on_trial(host, told, now); }
  void on(std::size_t host, const NetworkTried& tried, Moment now) { on_trial(host, tried, now); }
  void on(std::size_t host, const RankEnded& ended, Moment now);
  void on(std::size_t host, const GenerationEnded& ended, Moment now);
  template <class Other>
  void on(std::size_t, const Other&, Moment) {}

  void start_mpirun(Moment now);
  void start(std::size_t host, Start request);
  void prepare(std::size_t host, Moment now);
  void check_hosts(Moment now);
  void start_trial(std::vector<std::string> named, Moment now);
  template <class Answer>
  void on_trial(std::size_t host, const Answer& answer, Moment now);
  void carry_on_trial(NetworkTrial::Messages messages, Moment now);
  void check_network(Moment now);
  void compare_trial(Moment now);
  const NetworkChoice* network() const { return network_ ? &*network_ : nullptr; }
  void check_start(Moment now);
  void check_silence(Moment now);
  void check_stopped(Moment now);
  void check_init(Moment now);
  void check_end(Moment now);
  /// The job has failed for a reason that is known at once.
  void fail(const std::string& reason, int status, Moment now);
  /// The same; an elastic job may go on without what it has lost.
  void lose(Loss loss, int status, Moment now);
  void lose_host(std::size_t host, std::string reason, Moment now);
  void note_resumed(std::int64_t step, Moment now);
  void check_recovery(Moment now);
  void end_all(Moment grace, int signal, Moment now);
  void send_to(std::size_t host, Message message) {
    actions_.push_back(SendTo{host, std::move(message)});
  }
  void send_all(const Message& message);
  template <class... Arguments>
  void say(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    actions_.push_back(Say{fmt::format(format, std::forward<Arguments>(arguments)...)});
  }
  std::string ranks_of(std::size_t host) const;
  bool is_rank(int rank) const;
  std::vector<Instruction> take() { return std::exchange(actions_, {}); }

  JobPlan plan_;
  Moment start_;
  std::vector<Host> hosts_;
  std::vector<Rank> ranks_;
  std::vector<Instruction> actions_;
  bool has_run_ = false;                 ///< a rank has left hora::init
  std::optional<Moment> running_since_;  ///< then; reset with the warning
  std::string reason_to_give_way_;       ///< empty: it was not asked to
  /// The one by which the network is chosen; then others of that network, the first when mpirun
  /// starts.
  std::optional<NetworkTrial> trial_;
  std::optional<Moment> trial_limit_, last_check_;
  std::optional<NetworkChoice> network_;
  /// By pair of hosts that have answered: in how many of the last checks they have not.
  std::map<std::pair<std::size_t, std::size_t>, int> missed_;
  JobEnding ending_;
  bool prepare_again_ = false;  ///< hosts had not all that the ranks need
  bool started_ = false;        ///< mpirun
  bool init_was_said_ = false;
  bool lost_record_was_said_ = false;  ///< of one rank for all
  bool caused_ = false;                ///< the first cause is said, or none is to be said
  int status_ = 0;
  std::optional<Loss> loss_;
  std::int64_t resumable_ = -1;  ///< the largest step of RankSeen::resumable
  int interrupts_ = 0;
  std::optional<Moment> end_limit_;  ///< set: everything is ending; agents are given up then
  bool finished_ = false;
};

}  // namespace hora::launch
