#include "core/launch/guard/guard.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "core/flight/record_reader.h"
#include "core/flight/record_writer.h"
#include "core/launch/agent/preparation.h"
#include "core/launch/command/command.h"
#include "core/launch/command/cores.h"
#include "core/launch/command/environment.h"
#include "core/launch/command/resource_limits.h"
#include "core/launch/control/channel.h"
#include "core/launch/control/child_process.h"
#include "core/launch/control/event_loop.h"
#include "core/launch/guard/rank_evidence.h"
#include "core/launch/options/text.h"
#include "core/launch/watch/ending.h"

namespace hora::launch {
namespace {

constexpr int kCannotStart = 127;
constexpr std::size_t kLastLines = 5;
constexpr std::size_t kMostLastWords = 1000;
constexpr std::size_t kMostCause = 512;
constexpr std::chrono::milliseconds kRecordInterval{500};
constexpr std::size_t kMostPhase = 128;
constexpr std::size_t kMostFailure = 500;
/// A rank that has waited so long without doing anything makes the launcher try the network.
constexpr std::chrono::seconds kOverdue{10};
/// From MPI's sudden end to that of the rank that has asked for it (MPI_Abort).
constexpr std::chrono::milliseconds kAbortTime{200};
constexpr char kRecordFolderVariable[] = "HORA_RECORD_DIRECTORY";

int refuse(const std::string& reason) {
  std::fprintf(stderr, "horarun --guard: %s\n", reason.c_str());
  return kCannotStart;
}

/// Gives this process, and so the rank, its share of the host's cores.
void bind(const RankPlace& place, Binding binding) {
  const CoreShare share =
      share_of_cores(granted_cores(), place.local_rank, place.local_size, binding, place.size);
  for (const Variable& each : rank_variables(share)) {
    ::setenv(each.name.c_str(), each.value.c_str(), 0);  // the user's own stays
  }
  if (share.cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : share.cpus) CPU_SET(static_cast<std::size_t>(cpu), &set);
  if (::sched_setaffinity(0, sizeof set, &set) != 0) {
    std::fprintf(stderr, "horarun: rank %d is not bound to its cores: %s\n", place.rank,
                 std::strerror(errno));
  }
}

/// What rank 0 reads; empty for the others, whom hydra gives an input without end.
UniqueFd open_input(int rank) {
  if (rank != 0) return {};
  const auto path = variable_of_process(kInputVariable);
  UniqueFd input(path ? ::open(path->c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY) : -1);
  return input ? std::move(input) : UniqueFd(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
}

bool ends_a_process(int number) {
  return number == SIGTERM || number == SIGINT || number == SIGHUP || number == SIGQUIT ||
         number == kill_rank_signal();
}

class Guard {
 public:
  /// `watch_interval`: between two looks at the rank for `horarun --watch`; 0: there is no watch.
  Guard(int rank, UniqueFd agent_pipe, pid_t agent, std::chrono::seconds watch_interval)
      : rank_(rank),
        watch_interval_(watch_interval),
        agent_pipe_(std::move(agent_pipe)),
        agent_(open_process(agent)),
        parent_(open_process(::getppid())) {}

  int run(const std::vector<std::string>& program);

 private:
  struct Stream {
    UniqueFd descriptor;
    LastWords last_words{4000};
  };

  bool start(const std::vector<std::string>& program);
  void on_signals();
  void on_output(Stream& stream);
  bool pass_on(Stream& stream);
  void on_child();
  void on_ended(int status, const std::string& failure = {});
  void on_parent_ended(pid_t parent);
  void drain();
  void kill_rank();
  void report(const Message& message);

  void add_record(RankEnded& ended, internal::RecordTime ended_at) const;
  void report_waits();
  void report_overdue();
  void report_seen();

  int rank_;
  std::chrono::seconds watch_interval_;
  internal::RecordTime arrivals_seen_at_{};
  tl::expected<internal::RecordMemory, std::string> record_ = tl::unexpected<std::string>("");
  UniqueFd agent_pipe_, agent_, parent_;
  EventLoop loop_;
  UniqueFd signals_;
  Stream output_, error_;
  pid_t child_ = 0;
  std::int64_t asked_ns_ = 0;  ///< to end; since 1970
  bool asked_by_mpi_ = false;
  bool killed_by_agent_ = false;
  bool has_ended_ = false;
  bool initializing_ = false;
  bool in_shutdown_ = false;
  bool overdue_ = false;
  bool stopped_ = false;
  Clock::time_point started_;
  std::uint64_t oom_kills_ = 0;  ///< of its cgroup, at the start
  int exit_status_ = 128 + SIGKILL;
};

void Guard::report(const Message& message) {
  if (!send_report(agent_pipe_, message)) {
    kill_rank();
    loop_.stop();
  }
}

void Guard::kill_rank() {
  if (child_ > 0) ::kill(-child_, SIGKILL);
}

bool Guard::start(const std::vector<std::string>& program) {
  Pipe output = make_pipe(), error = make_pipe();
  started_ = Clock::now();
  oom_kills_ = oom_kills(read_small_file);
  std::vector<std::string> environment = rank_environment_of_session();
  record_ = internal::RecordMemory::create();
  if (record_) {
    if (watch_interval_.count() > 0) record_->layout().arrivals.wanted.store(1);
    environment.push_back(std::string(internal::kRecordVariable) + "=" + record_->path());
  }
  const UniqueFd input = open_input(rank_);
  const auto child = start_child({.arguments = program,
                                  .environment = std::move(environment),
                                  .input = input.get(),
                                  .output = output.write.get(),
                                  .error = error.write.get(),
                                  .dies_with_parent = true});
  if (!child) {
    RankEnded ended;
    ended.rank = rank_;
    ended.status = kCannotStart << 8;
    ended.failure = child.error().substr(0, kMostFailure);
    report(ended);
    return false;
  }
  child_ = *child;
  output_.descriptor = std::move(output.read);
  error_.descriptor = std::move(error.read);
  RankStarted started;
  started.rank = rank_;
  started.pid = child_;
  started.guard = ::getpid();
  report(started);
  return true;
}

bool Guard::pass_on(Stream& stream) {
  std::array<char, kMostOutputBytes> bytes;
  const ssize_t count = ::read(stream.descriptor.get(), bytes.data(), bytes.size());
  if (count < 0 && errno == EINTR) return true;
  if (count <= 0) return false;
  const std::string_view text(bytes.data(), static_cast<std::size_t>(count));
  stream.last_words.append(text);
  RankOutput message;
  message.rank = rank_;
  message.error = &stream == &error_;
  message.bytes.assign(text.begin(), text.end());
  report(message);
  return true;
}

void Guard::on_output(Stream& stream) {
  if (!pass_on(stream)) loop_.forget(stream.descriptor.get());
}

void Guard::on_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) {
      on_child();
    } else if ((number == SIGUSR1 || number == SIGUSR2) &&
               static_cast<pid_t>(info.ssi_pid) == child_) {
      // The rank's library passes on what the rank was sent.
      RankSignalled message;
      message.rank = rank_;
      message.number = number;
      report(message);
    } else if (child_ > 0) {
      // What has ended before it was asked has ended by itself.
      int status = 0;
      if (::waitpid(child_, &status, WNOHANG) == child_) return on_ended(status);
      if (asked_ns_ == 0 && ends_a_process(number)) {
        asked_ns_ = wall_clock_ns();
        asked_by_mpi_ = info.ssi_code == SI_QUEUE && info.ssi_int == kSentByMpi;
      }
      if (number == kill_rank_signal()) {
        killed_by_agent_ = true;
        kill_rank();
      } else {
        ::kill(child_, number);
      }
    }
  }
}

void Guard::on_child() {
  int status = 0;
  pid_t process = 0;
  while ((process = ::waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0) {
    if (process != child_) continue;
    if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
      // The launcher lets it go on so that it can end.
      stopped_ = WIFSTOPPED(status) || (stopped_ && asked_ns_ != 0);
      RankStopped message;
      message.rank = rank_;
      message.stopped = WIFSTOPPED(status);
      report(message);
    } else {
      on_ended(status);
    }
  }
}

void Guard::on_parent_ended(pid_t parent) {
  loop_.forget(parent_.get());
  if (has_ended_) return;
  const UniqueFd rank = open_process(child_);
  pollfd entry{rank.get(), POLLIN, 0};
  const bool has_ended = rank && ::poll(&entry, 1, static_cast<int>(kAbortTime.count())) > 0;
  drain();
  if (const auto status = status_of_abort(error_.last_words.lines(kLastLines))) {
    kill_rank();
    return on_ended(*status << 8);
  }
  if (has_ended) return on_child();
  kill_rank();
  on_ended(SIGKILL, "MPI's process that started it (pid " + std::to_string(parent) +
                        " of its host) has ended");
}

/// What the rank has written is in the pipes; a child of its own may hold them open.
void Guard::drain() {
  for (Stream* stream : {&output_, &error_}) {
    ::fcntl(stream->descriptor.get(), F_SETFL, O_NONBLOCK);
    while (pass_on(*stream)) {
    }
  }
}

void Guard::on_ended(int status, const std::string& failure) {
  has_ended_ = true;
  const auto ended_at = internal::record_now();
  drain();
  RankEnded ended;
  ended.rank = rank_;
  ended.pid = child_;
  ended.status = status;
  ended.failure = failure;
  // Without the agent's kill_rank_signal(), SIGKILL came from elsewhere.
  const bool was_killed = failure.empty() && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  if (killed_by_agent_ || !was_killed) {
    ended.asked_ns = asked_ns_;
    ended.asked_by_mpi = asked_by_mpi_;
  }
  ended.out_of_memory = was_killed && oom_kills(read_small_file) > oom_kills_;
  ended.lived_ms = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - started_).count());
  ended.ended_ns = wall_clock_ns();
  ended.last_words = error_.last_words.lines(kLastLines);
  if (ended.last_words.empty()) ended.last_words = output_.last_words.lines(kLastLines);
  if (ended.last_words.size() > kMostLastWords) {
    ended.last_words.erase(0, ended.last_words.size() - kMostLastWords);
  }
  add_record(ended, ended_at);
  report(ended);
  kill_rank();  // what is left of its process group
  exit_status_ = shell_status(status);
  loop_.stop();
}

void Guard::report_waits() {
  if (!record_) return;
  const internal::RecordLayout& memory = record_->layout();
  const internal::RecordState state = internal::state_of(memory);
  const bool initializing = memory.header.pid.load(std::memory_order_relaxed) != 0 &&
                            state == internal::RecordState::starting;
  const bool in_shutdown = state == internal::RecordState::in_shutdown;
  if (initializing == initializing_ && in_shutdown == in_shutdown_) return;
  initializing_ = initializing;
  in_shutdown_ = in_shutdown;
  RankWaits message;
  message.rank = rank_;
  message.initializing = initializing;
  message.in_shutdown = in_shutdown;
  report(message);
}

void Guard::report_overdue() {
  if (!record_) return;
  const internal::RecordLayout& memory = record_->layout();
  const bool waits =
      initializing_ || in_shutdown_ || memory.header.blocked.load(std::memory_order_relaxed) > 0;
  const bool overdue =
      waits && internal::record_now() - internal::last_activity_of(memory) >= kOverdue;
  if (overdue == overdue_) return;
  overdue_ = overdue;
  RankOverdue message;
  message.rank = rank_;
  message.overdue = overdue;
  report(message);
}

void Guard::report_seen() {
  if (!record_) return;
  const internal::RecordLayout& memory = record_->layout();
  report(rank_seen(memory, rank_, internal::record_now()));
  if (const auto arrivals = arrivals_seen(memory, arrivals_seen_at_)) report(*arrivals);
}

void Guard::add_record(RankEnded& ended, internal::RecordTime ended_at) const {
  if (!record_) ended.record_failure = record_.error().substr(0, kMostFailure);
  if (!record_) return;
  auto record = internal::read_record(record_->layout(), internal::record_now());
  if (!record || record->pid == 0) return;
  ended.initialized = record->state != internal::RecordState::starting;
  ended.shut_down = record->state == internal::RecordState::shut_down;
  ended.phase = record->phase.substr(0, kMostPhase);
  if (record->cause) {
    ended.cause = record->cause->text.substr(0, kMostCause);
    ended.cause_ns = (record->begin_wall + record->cause->time - record->begin).count();
    ended.peer_failed = record->cause->is_told() || record->cause->is(ErrorCode::timeout);
  }
  const char* folder = std::getenv(kRecordFolderVariable);
  if (folder == nullptr || std::string_view(folder) == "off" || ended_well(ended)) return;
  record->ended.emplace();
  record->ended->by_launcher = ended.asked_ns != 0 || !ended.failure.empty();
  record->ended->time = ended_at;
  if (WIFSIGNALED(ended.status)) {
    record->ended->signal = WTERMSIG(ended.status);
  } else {
    record->ended->status = WEXITSTATUS(ended.status);
  }
  record->stopped = stopped_;
  if (record->rank < 0) record->rank = rank_;
  const auto written = internal::write_record(*record, folder);
  if (!written) ended.record_failure = written.error().substr(0, kMostFailure);
}

int Guard::run(const std::vector<std::string>& program) {
  // Before the rank starts, so that none is lost.
  signals_ = signals_as_descriptor({SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2,
                                    SIGCONT, SIGTSTP, SIGWINCH, kill_rank_signal()});
  if (!start(program)) return kCannotStart;
  loop_.watch(signals_.get(), POLLIN, [this](short) { on_signals(); });
  loop_.watch(output_.descriptor.get(), POLLIN, [this](short) { on_output(output_); });
  loop_.watch(error_.descriptor.get(), POLLIN, [this](short) { on_output(error_); });
  if (agent_) {
    loop_.watch(agent_.get(), POLLIN, [this](short) {
      kill_rank();
      loop_.stop();
    });
  }
  if (parent_) {
    loop_.watch(parent_.get(), POLLIN,
                [this, parent = ::getppid()](short) { on_parent_ended(parent); });
  }
  loop_.each(kRecordInterval, [this] {
    report_waits();
    report_overdue();
  });
  if (watch_interval_.count() > 0) loop_.each(watch_interval_, [this] { report_seen(); });
  loop_.run();
  return exit_status_;
}

}  // namespace

int run_guard(std::span<const std::string> arguments) {
  ::signal(SIGPIPE, SIG_IGN);
  const auto binding = parse_binding(arguments.empty() ? "" : arguments.front());
  const auto program = decode_words(arguments.empty() ? "" : arguments.back());
  const auto interval = arguments.size() == 3 ? parse_integer(arguments[1], 1, kMostWatchInterval)
                                              : tl::expected<int, std::string>(0);
  const char* text = std::getenv(kAgentVariable);
  const auto address = parse_pipe_address(text == nullptr ? "" : text);
  if (!address || !binding || !program || !interval) {
    return refuse("it is started by horarun alone, which sets " + std::string(kAgentVariable));
  }
  leave_stand_in();
  auto pipe = open_report_pipe(*address);
  if (!pipe) return refuse(pipe.error());
  const auto place = rank_of_environment(variable_of_process);
  if (!place) return refuse(place.error());
  bind(*place, *binding);
  return Guard(place->rank, std::move(*pipe), address->process, std::chrono::seconds(*interval))
      .run(*program);
}

}  // namespace hora::launch
