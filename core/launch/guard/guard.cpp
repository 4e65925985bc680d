#include "core/launch/guard/guard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>

#include "core/launch/agent/agent.h"
#include "core/launch/command/command.h"
#include "core/launch/command/cores.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

/// Escapes of what is not printable make a text longer.
constexpr std::size_t kMostName = 100;
/// A rank that has waited so long without doing anything makes the launcher try the network.
constexpr std::chrono::seconds kOverdue{10};

/// "[host:pid] ...", as Open MPI's signal handler writes; or MPICH's words in MPI_Abort.
bool is_of_mpi(std::string_view line) {
  if (line.starts_with("[cli_")) return true;
  if (line.starts_with("Abort(") && status_of_abort(line)) return true;
  const auto colon = line.find(':'), end = line.find("] ");
  if (!line.starts_with('[') || end == line.npos || colon >= end) return false;
  return line.substr(0, end).find_first_not_of("0123456789", colon + 1) == line.npos;
}

constexpr int kCannotStart = 127;
constexpr std::size_t kLastLines = 5;
constexpr std::size_t kMostLastWords = 1000, kMostKept = 4000;
constexpr std::size_t kMostCause = 512;
constexpr std::chrono::milliseconds kRecordInterval{500};
constexpr std::size_t kMostPhase = 128;
constexpr std::size_t kMostFailure = 500;
/// From MPI's sudden end to that of the rank that has asked for it (MPI_Abort).
constexpr std::chrono::milliseconds kAbortTime{200};
constexpr char kRecordFolderVariable[] = "HORA_RECORD_DIRECTORY";

int refuse_to_guard(const std::string& reason) {
  std::fprintf(stderr, "horarun --guard: %s\n", reason.c_str());
  return kCannotStart;
}

/// sigqueue()'s value with a signal that the stand-in passes on from its parent, which is MPI's.
constexpr int kSentByMpi = 1;

constexpr int kLongestPoll = 1000;  // ms, where a process cannot be watched

volatile sig_atomic_t guard_process = 0, mpi_process = 0;

void pass_signal_on(int number, siginfo_t* info, void*) {
  const sigval value{.sival_int = info->si_pid == mpi_process ? kSentByMpi : 0};
  if (::sigqueue(guard_process, number, value) != 0) ::kill(guard_process, number);
}

[[noreturn]] void stand_in_for(pid_t guard) {
  ::prctl(PR_SET_NAME, kStandInName);
  // hydra takes the end of the connection for the end of the rank.
  ::close_range(STDERR_FILENO + 1, ~0U, 0);
  const UniqueFd parent = open_process(::getppid()), child = open_process(guard);
  guard_process = guard;
  mpi_process = ::getppid();
  struct sigaction action {};
  action.sa_sigaction = pass_signal_on;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    ::sigaction(number, &action, nullptr);
  }
  while (true) {
    int status = 0;
    if (::waitpid(guard, &status, WNOHANG) == guard) ::_exit(shell_status(status));
    std::array<pollfd, 2> entries{pollfd{child.get(), POLLIN, 0}, pollfd{parent.get(), POLLIN, 0}};
    ::poll(entries.data(), entries.size(), kLongestPoll);
    // The guard ends its rank when this process ends.
    if (entries[0].revents == 0 && entries[1].revents != 0) ::_exit(128 + SIGKILL);
  }
}

/// Leaves a process that MPI's launcher takes for the rank, and kills with its group where a rank
/// fails; returns in a child that leads a group of its own, and so has the time to say how its rank
/// ended. The first process passes on signals, and ends with the child's status or its own parent.
void leave_stand_in() {
  const pid_t guard = ::fork();
  if (guard > 0) stand_in_for(guard);
  if (guard == 0) ::setpgid(0, 0);
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

/// Opens what rank 0 reads; empty for the others, whom hydra gives an input without end.
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
  Guard(int rank, ReportPipe agent, std::chrono::seconds watch_interval)
      : rank_(rank),
        watch_interval_(watch_interval),
        agent_pipe_(std::move(agent.pipe)),
        agent_(open_process(agent.agent)),
        parent_(open_process(::getppid())) {
    seen_.state = kNotBegun;
  }

  int run(const std::vector<std::string>& program) {
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
    loop_.each(kRecordInterval, [this] { look(); });
    loop_.run();
    return exit_status_;
  }

 private:
  struct Stream {
    UniqueFd descriptor;
    std::string end = {};  ///< of what it has printed
  };

  bool start(const std::vector<std::string>& program) {
    Pipe output = make_pipe(), error = make_pipe();
    started_ = Clock::now();
    oom_kills_ = oom_kills(read_small_file);
    std::vector<std::string> environment = rank_environment_of_session();
    record_ = internal::RecordMemory::create();
    if (record_) {
      if (watch_interval_.count() > 0) record_->layout().arrivals.wanted.store(1);
      environment.push_back(fmt::format("{}={}", internal::kRecordVariable, record_->path()));
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
    report(RankStarted{{}, rank_, child_, ::getpid()});
    return true;
  }

  void on_signals() {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      const int number = static_cast<int>(info.ssi_signo);
      if (number == SIGCHLD) {
        on_child();
      } else if ((number == SIGUSR1 || number == SIGUSR2) &&
                 static_cast<pid_t>(info.ssi_pid) == child_) {
        // The rank's library passes on what the rank was sent.
        report(RankSignalled{{}, rank_, number});
      } else if (child_ > 0) {
        // A rank that has ended before it was asked has ended by itself.
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

  void on_output(Stream& stream) {
    if (!pass_on(stream)) loop_.forget(stream.descriptor.get());
  }

  bool pass_on(Stream& stream) {
    std::array<char, kMostOutputBytes> bytes;
    const ssize_t count = ::read(stream.descriptor.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) return true;
    if (count <= 0) return false;
    const std::string_view text(bytes.data(), static_cast<std::size_t>(count));
    stream.end.append(text);
    if (stream.end.size() > kMostKept) stream.end.erase(0, stream.end.size() - kMostKept);
    report(RankOutput{{}, rank_, &stream == &error_, {text.begin(), text.end()}});
    return true;
  }

  void on_child() {
    int status = 0;
    pid_t process = 0;
    while ((process = ::waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED)) > 0) {
      if (process != child_) continue;
      if (WIFSTOPPED(status) || WIFCONTINUED(status)) {
        // The launcher lets it go on so that it can end.
        stopped_ = WIFSTOPPED(status) || (stopped_ && asked_ns_ != 0);
        report(RankStopped{{}, rank_, WIFSTOPPED(status)});
      } else {
        on_ended(status);
      }
    }
  }

  void on_ended(int status, const std::string& failure = {}) {
    if (std::exchange(has_ended_, true)) return;
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
    ended.last_words = last_lines(error_.end, kLastLines);
    if (ended.last_words.empty()) ended.last_words = last_lines(output_.end, kLastLines);
    if (ended.last_words.size() > kMostLastWords) {
      ended.last_words.erase(0, ended.last_words.size() - kMostLastWords);
    }
    add_record(ended, ended_at);
    report(ended);
    kill_rank();  // what is left of its process group
    exit_status_ = shell_status(status);
    loop_.stop();
  }

  void on_parent_ended(pid_t parent) {
    loop_.forget(parent_.get());
    if (has_ended_) return;
    const UniqueFd rank = open_process(child_);
    pollfd entry{rank.get(), POLLIN, 0};
    const bool has_ended = rank && ::poll(&entry, 1, static_cast<int>(kAbortTime.count())) > 0;
    drain();
    if (const auto status = status_of_abort(error_.end)) {
      kill_rank();
      return on_ended(*status << 8);
    }
    if (has_ended) return on_child();
    kill_rank();
    on_ended(SIGKILL,
             fmt::format("MPI's process that started it (pid {} of its host) has ended", parent));
  }

  /// Takes what the rank has written out of the pipes; a child of its own may hold them open.
  void drain() {
    for (Stream* stream : {&output_, &error_}) {
      ::fcntl(stream->descriptor.get(), F_SETFL, O_NONBLOCK);
      while (pass_on(*stream)) {
      }
    }
  }

  void kill_rank() {
    if (child_ > 0) ::kill(-child_, SIGKILL);
  }

  void report(const Message& message) {
    if (!send_report(agent_pipe_, message)) {
      kill_rank();
      loop_.stop();
    }
  }

  void add_record(RankEnded& ended, internal::RecordTime ended_at) const {
    if (!record_) ended.record_failure = record_.error().substr(0, kMostFailure);
    if (!record_) return;
    auto record = internal::read_record(record_->layout(), internal::record_now());
    if (!record || record->pid == 0) return;
    ended.initialized = record->state != internal::RecordState::starting;
    ended.shut_down = record->state == internal::RecordState::shut_down;
    ended.phase = record->phase.substr(0, kMostPhase);
    ended.resumable = record->resumable;
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

  void look() {
    if (!record_) return;
    const internal::RecordLayout& memory = record_->layout();
    const RankSeen before = std::exchange(seen_, rank_seen(memory, rank_, internal::record_now()));
    const bool is_due = watch_interval_.count() > 0 && Clock::now() >= next_look_;
    const bool has_changed = seen_.state != before.state || seen_.overdue != before.overdue ||
                             seen_.resumable != before.resumable;
    if (is_due || has_changed) report(seen_);
    if (!is_due) return;
    next_look_ = Clock::now() + watch_interval_;
    if (const auto arrivals = arrivals_seen(memory, arrivals_seen_at_)) report(*arrivals);
  }

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
  RankSeen seen_;  ///< at the last look
  bool stopped_ = false;
  Clock::time_point started_, next_look_;
  std::uint64_t oom_kills_ = 0;  ///< of its cgroup, at the start
  int exit_status_ = 128 + SIGKILL;
};

}  // namespace

std::string last_lines(std::string_view rest, std::size_t count) {
  std::vector<std::string_view> all, own;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find_first_of("\r\n"));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.find_first_not_of(" \t") == line.npos) continue;
    all.push_back(line);
    if (!is_of_mpi(line)) own.push_back(line);
  }
  if (own.empty()) own = std::move(all);
  return fmt::format("{}", fmt::join(std::span(own).last(std::min(count, own.size())), "\n"));
}

bool ended_well(const RankEnded& ended) {
  return ended.failure.empty() && WIFEXITED(ended.status) && WEXITSTATUS(ended.status) == 0 &&
         (!ended.initialized || ended.shut_down);
}

std::optional<int> status_of_abort(std::string_view output) {
  constexpr std::string_view kStart = "Abort(";
  const auto said = output.find("): application called MPI_Abort(");
  const auto start = output.substr(0, said).rfind(kStart);
  if (said == output.npos || start == output.npos) return std::nullopt;
  const std::string_view number = output.substr(start + kStart.size());
  int status = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), status);
  if (error != std::errc()) return std::nullopt;
  return (status & 0xff) == 0 ? 1 : status & 0xff;
}

using internal::FlightRecord;
using internal::RankArrivals;
using internal::RecordState;
using internal::RecordTime;

RankSeen rank_seen(const internal::RecordLayout& memory, int rank, RecordTime now) {
  const auto record = internal::read_record(memory, now, /*most=*/1).value_or(FlightRecord());
  RankSeen seen;
  seen.rank = rank;
  seen.state = record.pid > 0 ? static_cast<std::uint8_t>(record.state) : kNotBegun;
  seen.waits = record.blocked > 0;
  seen.submitted = record.submitted;
  if (!record.collectives.empty()) {
    seen.collective = record.collectives.back().name.substr(0, kMostName);
  }
  seen.phase = record.phase.substr(0, kMostName);
  seen.resumed = record.resumed;
  seen.resumable = record.resumable;
  const RecordTime idle = std::max(now - record.last_activity, RecordTime(0));
  seen.idle_ms = static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(idle).count());
  const bool is_inside = record.pid > 0 && (record.state == RecordState::starting ||
                                            record.state == RecordState::in_shutdown);
  seen.overdue = (seen.waits || is_inside) && idle >= kOverdue;
  return seen;
}

std::optional<ArrivalsSeen> arrivals_seen(const internal::RecordLayout& memory, RecordTime& after) {
  const auto arrivals = internal::read_arrivals(memory.arrivals);
  if (!arrivals || arrivals->at <= after) return std::nullopt;
  after = arrivals->at;
  using Milliseconds = std::chrono::duration<float, std::milli>;
  ArrivalsSeen seen;
  seen.decisions = arrivals->decisions;
  seen.steps = arrivals->steps;
  for (const RankArrivals& row : arrivals->rows) {
    seen.rows.emplace_back(static_cast<std::uint32_t>(row.last), Milliseconds(row.median).count(),
                           Milliseconds(row.p99).count(), row.rank, row.phase);
  }
  return seen;
}

int run_guard(std::span<const std::string> arguments) {
  ::signal(SIGPIPE, SIG_IGN);
  const auto binding = parse_binding(arguments.empty() ? "" : arguments.front());
  const auto program = decode_words(arguments.empty() ? "" : arguments.back());
  const auto interval = arguments.size() == 3 ? parse_integer(arguments[1], 1, kMostWatchInterval)
                                              : tl::expected<int, std::string>(0);
  if (!binding || !program || !interval) {
    return refuse_to_guard("it is started by horarun alone, with its own arguments");
  }
  leave_stand_in();
  auto pipe = open_report_pipe();
  if (!pipe) return refuse_to_guard(pipe.error());
  const auto place = rank_of_environment(variable_of_process);
  if (!place) return refuse_to_guard(place.error());
  bind(*place, *binding);
  return Guard(place->rank, std::move(*pipe), std::chrono::seconds(*interval)).run(*program);
}

}  // namespace hora::launch
