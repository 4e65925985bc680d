#include "core/launch/agent/agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "core/launch/command/command.h"
#include "core/launch/command/cores.h"
#include "core/launch/network/network.h"

namespace hora::launch {
namespace {

/// Twice the 8 MiB that Open MPI's daemon writes there for itself and its ranks.
constexpr std::uint64_t kTemporaryBytes = std::uint64_t{16} << 20;

std::string temporary_folder() {
  const char* folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder == '/' ? folder : "/tmp";
}

/// Bytes; none: unknown.
std::optional<std::uint64_t> free_space(const std::string& folder) {
  struct statvfs space {};
  if (::statvfs(folder.c_str(), &space) != 0 || space.f_blocks == 0) return std::nullopt;
  return std::uint64_t{space.f_bavail} * space.f_frsize;
}

/// Says what is wrong with the folder or the program; empty where both are there.
std::string wrong_with(const Prepare& request) {
  struct stat status {};
  const bool is_there = ::stat(request.folder.c_str(), &status) == 0;
  if (!is_there || !S_ISDIR(status.st_mode)) {
    return fmt::format(
        "the folder {}: {}; ranks start in the folder in which horarun was started, or "
        "that --wdir names",
        request.folder, is_there ? "it is no folder" : std::strerror(errno));
  }
  const std::string path = program_from(request.folder, request.program);
  const auto file = inspect_program(path, request.path);
  if (file) return {};
  std::error_code ignored;
  const bool is_missing = path.find('/') != path.npos && !std::filesystem::exists(path, ignored);
  return file.error() +
         (is_missing ? "; copy it there, or name a folder that all hosts share" : "");
}

constexpr char kSessionPrefix[] = "horarun-";
constexpr char kTmpdirVariable[] = "HORARUN_TMPDIR";  ///< the TMPDIR that ranks are to have
constexpr char kMemoryVariable[] = "HORARUN_SHM";     ///< the folder in shared memory
constexpr char kCommits[] = "commits";                ///< in it, for all generations

std::string make_folder(const std::string& parent, const std::string& advice = {}) {
  std::string path = parent + "/" + kSessionPrefix + "XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) {
    throw std::runtime_error(
        fmt::format("no folder can be made in {}: {}{}", parent, std::strerror(errno), advice));
  }
  return path;
}

/// Starts a process that removes the folders where this one is killed; it ends with this one
/// otherwise.
void start_keeper(const SessionFolders& folders) {
  ChildOptions options;
  options.arguments = {"/proc/self/exe", "--keeper", std::to_string(::getpid())};
  options.arguments.insert(options.arguments.end(), folders.paths().begin(), folders.paths().end());
  // Streams of its own: the agent's are its connection with the launcher.
  const UniqueFd nowhere(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  options.output = options.error = nowhere.get();
  options.own_session = true;
  const auto started = start_child(options);
  if (!started) throw std::runtime_error(started.error());
}

using std::chrono::milliseconds;

/// More than this waiting for the launcher: what guards report waits in their pipe.
constexpr std::size_t kMostQueued = std::size_t{4} << 20;
constexpr milliseconds kAgentTick{100};
constexpr milliseconds kLastFlush{2000};
constexpr milliseconds kKillLimit{5000};
/// From a rank's SIGKILL until its guard has said so, and has written its flight record.
constexpr milliseconds kReportTime{1000};
constexpr int kNotStarted = 127;  ///< as a shell has it

class Agent {
 public:
  Agent(Connection launcher, const std::string& name)
      : launcher_(name),
        channel_(
            loop_, std::move(launcher),
            [this](Message&& message) { on_message(std::move(message)); },
            [this](const std::string& why) {
              end_alone(fmt::format("{} is gone: {}", launcher_, why));
            }),
        reports_(make_pipe()),
        signals_(
            signals_as_descriptor({SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})) {
    // Children that daemons leave behind become this process's, and so are found and ended.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    start_keeper(folders_);
    ::fcntl(reports_.read.get(), F_SETFL, O_NONBLOCK);
    watch_reports();
    loop_.watch(signals_.get(), POLLIN, [this](short) { on_signals(); });
    loop_.each(kAgentTick, [this] { on_time(); });
  }

  ~Agent() { kill_descendants(kKillLimit); }

  AgentEnding run() {
    channel_.send(this_host());
    loop_.run();
    return ending_;
  }

 private:
  void on_message(Message&& message) {
    last_heard_ = Clock::now();
    std::visit([this](const auto& body) { on(body); }, message);
  }

  void on(const Prepare& request) {
    silence_ = milliseconds(request.silence_ms);
    elastic_ = request.elastic;
    next_heartbeat_ = Clock::now();
    channel_.send(prepare(request));
  }
  /// Where the process cannot be started, that is its output, and its exit status 127.
  void on(const Start& request) {
    if (kill_time_) return;
    const auto started = start(request);
    if (started) return;
    const std::string& why = started.error();
    channel_.send(ProcessOutput{{}, request.process, true, {why.begin(), why.end()}});
    channel_.send(ProcessEnded{{}, request.process, kNotStarted << 8});
  }

  void on(const SignalRanks& request) { signal_ranks(request.number, request.except); }
  void on(const EndAll& request) {
    ending_ = {.status = request.status};
    keep_ = request.keep;
    end_all(milliseconds(request.grace_ms), request.signal);
  }

  void on(const GiveWay&) { folders_.ask_to_give_way(); }

  void on(const TellNetwork& request) { network_.on(request); }
  void on(const TryNetwork& request) { network_.on(request); }
  template <class Other>
  void on(const Other&) {}

  /// A process that the agent has started for the launcher: mpirun, or a daemon of MPI's.
  struct Started {
    std::uint32_t number = 0;              ///< the launcher's
    std::array<UniqueFd, 2> streams = {};  ///< output, error
  };
  /// As its guard has reported it.
  struct Rank {
    pid_t process = 0;
    pid_t guard_process = 0;
    UniqueFd guard = {};
    Clock::time_point started = Clock::now();
  };

  tl::expected<void, std::string> start(const Start& request) {
    ChildOptions child;
    child.arguments = request.arguments.empty() ? shell_command(request.text) : request.arguments;
    child.folder = request.folder;
    child.dies_with_parent = true;
    child.environment = request.environment;
    for (std::string& variable : folders_.environment()) {
      child.environment.push_back(std::move(variable));
    }
    child.environment.push_back(fmt::format("{}={}", kAgentVariable, address_of(reports_.write)));
    UniqueFd input;
    if (!request.input.empty()) {
      input.reset(::open(request.input.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
    }
    child.input = input.get();
    Pipe output = make_pipe(), error = make_pipe();
    child.output = output.write.get();
    child.error = error.write.get();
    const auto started = start_child(child);
    if (!started) return tl::unexpected(started.error());
    Started& process = processes_[*started];
    process = {request.process, {std::move(output.read), std::move(error.read)}};
    for (std::size_t i = 0; i < process.streams.size(); ++i) {
      const int descriptor = process.streams[i].get();
      ::fcntl(descriptor, F_SETFL, O_NONBLOCK);
      loop_.watch(descriptor, POLLIN, [this, &process, descriptor, i](short) {
        if (!pass_on(process, i) && errno != EAGAIN) loop_.forget(descriptor);
      });
    }
    return {};
  }

  /// Sends what one read() gives; false, with errno 0 at the end, where it gives nothing.
  bool pass_on(const Started& process, std::size_t stream) {
    std::array<std::uint8_t, 4096> bytes;
    errno = 0;
    const ssize_t count = ::read(process.streams[stream].get(), bytes.data(), bytes.size());
    if (count <= 0) return false;
    channel_.send(
        ProcessOutput{{}, process.number, stream == 1, {bytes.begin(), bytes.begin() + count}});
    return true;
  }

  void on_ended(pid_t id, int status) {
    const auto found = processes_.find(id);
    if (found == processes_.end()) return;
    on_reports();  // what its ranks' guards have said before it ended
    Started& process = found->second;
    for (std::size_t i = 0; i < process.streams.size(); ++i) {
      while (pass_on(process, i)) {
      }
      loop_.forget(process.streams[i].get());
    }
    channel_.send(ProcessEnded{{}, process.number, status});
    processes_.erase(found);
  }

  void add(const RankStarted& started) {
    remove(started.rank);
    Rank& rank = ranks_[started.rank];
    rank.process = static_cast<pid_t>(started.pid);
    rank.guard_process = static_cast<pid_t>(started.guard);
    rank.guard = open_process(rank.guard_process);
    if (!rank.guard) return;
    loop_.watch(rank.guard.get(), POLLIN, [this, number = started.rank](short) {
      on_reports();  // it may have said how its rank ended
      kill_unguarded(number);
    });
  }

  void remove(int rank) {
    const auto found = ranks_.find(rank);
    if (found == ranks_.end()) return;
    loop_.forget(found->second.guard.get());
    ranks_.erase(found);
  }

  /// A rank whose guard has ended without having said how the rank did.
  void kill_unguarded(int number) {
    const auto found = ranks_.find(number);
    if (found == ranks_.end()) return;
    const Rank& rank = found->second;
    ::kill(rank.process, SIGKILL);
    RankEnded ended;
    ended.rank = number;
    ended.pid = rank.process;
    ended.status = SIGKILL;
    ended.ended_ns = wall_clock_ns();
    ended.lived_ms = static_cast<std::uint64_t>(
        std::chrono::duration_cast<milliseconds>(Clock::now() - rank.started).count());
    ended.failure = fmt::format("its guard (horarun --guard, pid {} of its host) was killed",
                                rank.guard_process);
    ended.guard_killed = true;
    remove(number);
    channel_.send(ended);
  }

  /// Through the guards. `except`: a rank that does not get it.
  void signal_ranks(int number, int except = -1) const {
    for (const auto& [rank, process] : ranks_) {
      if (rank != except) ::kill(process.guard_process, number);
    }
  }

  void on_time() {
    const auto now = Clock::now();
    network_.on_time(now);
    if (now - last_heard_ > silence_) {
      end_alone(
          fmt::format("{} has not been heard from for {} s: it hangs, or the network to it is cut",
                      launcher_, silence_.count() / 1000));
    }
    if (kill_time_) {
      // Guards then report and record how their ranks have ended.
      if (now >= *kill_time_) signal_ranks(kill_rank_signal());
      if (ranks_.empty() || now >= *kill_time_ + kReportTime) return finish();
    }
    if (now >= next_heartbeat_) {
      channel_.send(Heartbeat{});
      next_heartbeat_ = now + silence_ / kBeatsOfSilence;
    }
    watch_reports();
  }

  void on_signals() {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      switch (info.ssi_signo) {
        case SIGCHLD:
          reap();
          break;
        case SIGTERM:  // from Slurm, which tells the agents of all hosts before it kills
          if (elastic_) {
            channel_.send(HostDrained{});
            break;
          }
          [[fallthrough]];
        case SIGUSR1:
        case SIGUSR2:
          signal_ranks(static_cast<int>(info.ssi_signo));
          break;
        default:
          // ssh sends SIGHUP where its connection has ended.
          end_alone("this process was sent " + signal_text(static_cast<int>(info.ssi_signo)));
      }
    }
  }

  void watch_reports() {
    loop_.watch(reports_.read.get(), channel_.queued() < kMostQueued ? POLLIN : 0,
                [this](short) { on_reports(); });
  }

  void on_reports() {
    while (channel_.queued() < kMostQueued) {
      const auto frame = report_frames_.read(reports_.read.get());
      if (!frame || !*frame) return;
      // Only this user's processes can write here.
      if (auto message = decode(**frame)) on_report(std::move(*message));
    }
  }

  void on_report(Message&& message) {
    if (auto* part = std::get_if<StartRemote>(&message)) {
      std::string& command = remote_commands_[part->sender];
      command += part->text;
      if (!part->complete) return;
      part->text = std::move(command);
      remote_commands_.erase(part->sender);
    } else if (const auto* started = std::get_if<RankStarted>(&message)) {
      add(*started);
      if (kill_time_) ::kill(static_cast<pid_t>(started->guard), SIGTERM);
    } else if (const auto* ended = std::get_if<RankEnded>(&message)) {
      remove(ended->rank);
    }
    channel_.send(message);
  }

  void reap() {
    int status = 0;
    pid_t process = 0;
    while ((process = ::waitpid(-1, &status, WNOHANG)) > 0) on_ended(process, status);
  }

  void end_all(milliseconds grace, int signal = SIGTERM) {
    const auto time = Clock::now() + grace;
    if (!kill_time_ && grace.count() > 0) {
      signal_ranks(signal);
      // A stopped process takes the signal when it continues.
      for (const auto& [number, rank] : ranks_) ::kill(rank.process, SIGCONT);
    }
    if (!kill_time_ || time < *kill_time_) kill_time_ = time;
  }

  /// Without the launcher's word.
  void end_alone(const std::string& why) {
    if (!kill_time_) ending_.cut_off = why;
    keep_ = false;
    end_all(milliseconds(0));
  }

  void finish() {
    on_reports();
    kill_descendants(kKillLimit);
    on_reports();
    reap();
    if (keep_) return begin_anew();
    channel_.flush(kLastFlush);
    loop_.stop();
  }

  /// For the next generation.
  void begin_anew() {
    for (auto& [id, process] : processes_) {
      for (const UniqueFd& stream : process.streams) loop_.forget(stream.get());
    }
    processes_.clear();
    while (!ranks_.empty()) remove(ranks_.begin()->first);
    remote_commands_.clear();
    folders_.clear();
    start_keeper(folders_);
    ending_ = {};
    kill_time_.reset();
    channel_.send(GenerationEnded{});
  }

  const std::string launcher_;  ///< as errors name it
  EventLoop loop_;
  Channel channel_;
  std::map<pid_t, Started> processes_;
  std::map<int, Rank> ranks_;
  AgentNetwork network_{loop_, [this](const Message& message) { channel_.send(message); }};
  SessionFolders folders_;
  Pipe reports_;
  FrameReader report_frames_;
  UniqueFd signals_;
  std::map<std::int64_t, std::string> remote_commands_;  ///< in parts, by sender
  AgentEnding ending_;
  bool keep_ = false;  ///< this process, when all has ended
  bool elastic_ = false;
  milliseconds silence_{30000};
  Clock::time_point last_heard_ = Clock::now();
  Clock::time_point next_heartbeat_ = Clock::now();
  std::optional<Clock::time_point> kill_time_;  ///< set: everything is ending
};

}  // namespace

Prepared prepare(const Prepare& request) {
  Prepared result;
  if (auto wrong = wrong_with(request); !wrong.empty()) result.problems.push_back(wrong);
  const std::uint64_t left = free_space(temporary_folder()).value_or(kTemporaryBytes);
  if (left < kTemporaryBytes) {
    result.problems.push_back(fmt::format(
        "the folder {} has {} MiB left, MPI needs {}; remove what lies there, or set TMPDIR to "
        "another",
        temporary_folder(), left >> 20, kTemporaryBytes >> 20));
  } else if (variable_of_process("PATH").value_or("").empty()) {
    result.problems.push_back(
        "PATH is not set, without which mpirun does not start; export "
        "PATH=/usr/local/bin:/usr/bin:/bin");
  }
  if (request.ranks > 0) {
    const auto binding = parse_binding(request.binding).value_or(Binding::automatic);
    result.cores = describe_cores(granted_cores(), static_cast<int>(request.ranks), binding,
                                  static_cast<int>(request.world_size), request.threads);
  }
  result.memory = available_memory(read_small_file);
  result.shared_memory = free_space("/dev/shm").value_or(0);
  result.clock_ns = wall_clock_ns();
  return result;
}

Hello this_host() {
  Hello hello;
  hello.version = HORA_VERSION;
  utsname machine{};
  if (::uname(&machine) == 0) hello.architecture = machine.machine;
  return hello;
}

SessionFolders::SessionFolders() {
  paths_.push_back(make_folder(temporary_folder(), "; set TMPDIR to one that can be written"));
  try {
    paths_.push_back(make_folder("/dev/shm"));
  } catch (...) {
    remove_session_folders(paths_);
    throw;
  }
}

SessionFolders::~SessionFolders() {
  remove_session_folders(paths_);
}

void SessionFolders::clear() const {
  for (const std::string& path : paths_) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
      if (entry.path().filename() == kCommits) continue;
      std::filesystem::remove_all(entry.path(), ignored);
    }
  }
}

void SessionFolders::ask_to_give_way() const {
  const std::string path = fmt::format("{}/{}{}", paths_[1], kCommits, internal::kGiveWaySuffix);
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

std::vector<std::string> SessionFolders::environment() const {
  const char* own = std::getenv("TMPDIR");
  return {fmt::format("{}={}", kMemoryVariable, paths_[1]),
          fmt::format("{}={}", kTmpdirVariable, own == nullptr ? "" : own), "TMPDIR=" + paths_[0]};
}

std::vector<std::string> rank_environment_of_session() {
  const char *memory = std::getenv(kMemoryVariable), *own = std::getenv(kTmpdirVariable);
  if (memory == nullptr || own == nullptr) return {};
  std::vector<std::string> result{fmt::format("TMPDIR={}", *own == '\0' ? "/tmp" : own)};
  if (std::getenv(internal::kGenerationVariable) != nullptr) {
    result.push_back(fmt::format("{}={}/{}", internal::kCommitsVariable, memory, kCommits));
  }
  for (const char* name :
       {"OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_btl_sm_backing_directory"}) {
    if (std::getenv(name) == nullptr) result.push_back(fmt::format("{}={}", name, memory));
  }
  return result;
}

int run_keeper(std::span<const std::string> arguments) {
  if (arguments.empty()) return 2;
  ::signal(SIGTERM, SIG_IGN);
  const pid_t agent = std::atoi(arguments[0].c_str());
  const UniqueFd process = open_process(agent);
  pollfd entry{process.get(), POLLIN, 0};
  while (process && ::getppid() == agent && ::poll(&entry, 1, -1) < 0 && errno == EINTR) {
  }
  // Processes that are ending may still add files.
  const std::vector<std::string> folders(arguments.begin() + 1, arguments.end());
  const auto end = Clock::now() + std::chrono::seconds(1);
  while (Clock::now() < end) {
    remove_session_folders(folders);
    ::usleep(50000);
  }
  return 0;
}

void remove_session_folders(const std::vector<std::string>& paths) noexcept {
  for (const std::string& path : paths) {
    const std::filesystem::path folder(path);
    if (!folder.is_absolute() || !folder.filename().native().starts_with(kSessionPrefix)) continue;
    std::error_code error;
    // A process that is ending may still add a file.
    for (int attempt = 0; attempt < 3; ++attempt) {
      std::filesystem::remove_all(folder, error);
      if (!error) break;
    }
  }
}

AgentEnding run_agent(Connection launcher, const std::string& name) {
  ::signal(SIGPIPE, SIG_IGN);
  return Agent(std::move(launcher), name).run();
}

std::vector<ProcessStat> descendants_of(pid_t ancestor) {
  std::multimap<std::int64_t, ProcessStat> children;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::int64_t pid = std::atoll(entry->path().filename().c_str());
    if (pid == 0) continue;
    if (auto stat = internal::process_stat(pid)) children.emplace(stat->parent, std::move(*stat));
  }
  std::vector<ProcessStat> result;
  std::vector<std::int64_t> parents{ancestor};
  for (std::size_t i = 0; i < parents.size(); ++i) {
    const auto [first, last] = children.equal_range(parents[i]);
    for (auto child = first; child != last; ++child) {
      parents.push_back(child->second.pid);
      if (child->second.state != internal::ProcessState::gone) result.push_back(child->second);
    }
  }
  return result;
}

void kill_descendants(std::chrono::milliseconds limit) noexcept {
  try {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (std::chrono::steady_clock::now() < end) {
      const auto left = descendants_of(::getpid());
      if (left.empty()) break;
      for (const ProcessStat& process : left) ::kill(static_cast<pid_t>(process.pid), SIGKILL);
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      ::usleep(5000);
    }
  } catch (...) {  // no memory: the kernel ends what is left with the session
  }
}

}  // namespace hora::launch
