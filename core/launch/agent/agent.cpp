#include "core/launch/agent/agent.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "core/launch/agent/preparation.h"
#include "core/launch/agent/session_folders.h"
#include "core/launch/command/remote_command.h"
#include "core/launch/control/channel.h"
#include "core/launch/control/child_process.h"
#include "core/launch/control/process_tree.h"
#include "core/launch/control/report_pipe.h"
#include "core/launch/network/agent_network.h"

namespace hora::launch {
namespace {

using std::chrono::milliseconds;

/// More than this waiting for the launcher: what guards report waits in their pipe.
constexpr std::size_t kMostQueued = std::size_t{4} << 20;
constexpr milliseconds kTick{100};
constexpr int kLauncherIsGone = 69;  // sysexits.h, EX_UNAVAILABLE
constexpr milliseconds kStopScan{2000};
constexpr milliseconds kLastFlush{2000};

/// Of the last in `environment` ("NAME=VALUE"), else this process's; empty where there is none.
std::string value_of(std::string_view name, const std::vector<std::string>& environment) {
  const std::string start = std::string(name) + "=";
  for (auto variable = environment.rbegin(); variable != environment.rend(); ++variable) {
    if (variable->starts_with(start)) return variable->substr(start.size());
  }
  const char* own = std::getenv(std::string(name).c_str());
  return own == nullptr ? "" : own;
}

class Agent {
 public:
  Agent(UniqueFd in, UniqueFd out, const AgentOptions& options, std::optional<SealPair> seals);
  ~Agent() { kill_descendants(); }
  int run();

 private:
  struct Process {
    std::uint32_t number = 0;  ///< the launcher's
    UniqueFd output, error;
  };

  void on_message(Message&& message);
  void on(const Prepare& request) { channel_.send(prepare(request)); }
  void on(const Start& request);
  void on(const SignalRanks& request);
  void on(const EndAll& request);
  void on(const TellNetwork& request) { network_.on(request); }
  void on(const TryNetwork& request) { network_.on(request); }
  template <class Other>
  void on(const Other&) {}

  void refuse_start(std::uint32_t process, const std::string& reason);
  void on_time();
  void on_signals();
  void on_reports();
  void on_report(Message&& message);
  void watch_rank(const RankStarted& started);
  void forget_rank(int rank);
  void on_guard_ended(int rank);
  void on_output(pid_t process, bool error);
  void drain(Process& process);
  void reap();
  void report_stopped();
  void end_all(milliseconds grace, int signal = SIGTERM);
  void kill_descendants() noexcept;
  void finish();

  const AgentOptions options_;
  EventLoop loop_;
  Channel channel_;
  AgentNetwork network_{loop_, [this](const Message& message) { channel_.send(message); }};
  SessionFolders folders_;
  Pipe reports_;
  FrameReader report_frames_;
  UniqueFd signals_;
  std::map<pid_t, Process> processes_;
  struct Rank {
    pid_t process = 0;
    pid_t guard_process = 0;
    UniqueFd guard;
    Clock::time_point started = Clock::now();
  };
  std::map<int, Rank> ranks_;                            ///< those that run
  std::map<std::int64_t, std::string> remote_commands_;  ///< in parts, by sender
  std::set<pid_t> stopped_;
  int exit_status_ = kLauncherIsGone;
  Clock::time_point last_heard_ = Clock::now();
  Clock::time_point next_heartbeat_ = Clock::now();
  Clock::time_point next_stop_scan_ = Clock::now();
  std::optional<Clock::time_point> kill_time_;  ///< set: everything is ending
};

Agent::Agent(UniqueFd in, UniqueFd out, const AgentOptions& options, std::optional<SealPair> seals)
    : options_(options),
      channel_(
          loop_, std::move(in), std::move(out),
          [this](Message&& message) { on_message(std::move(message)); },
          [this](const std::string&) { end_all(milliseconds(0)); }, std::move(seals)),
      reports_(make_pipe()),
      signals_(signals_as_descriptor({SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT})) {
  // What daemons leave behind becomes this process's child, and so is found and ended.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  start_keeper(folders_);
  ::fcntl(reports_.read.get(), F_SETFL, O_NONBLOCK);
  loop_.watch(reports_.read.get(), POLLIN, [this](short) { on_reports(); });
  loop_.watch(signals_.get(), POLLIN, [this](short) { on_signals(); });
  loop_.each(kTick, [this] { on_time(); });
}

int Agent::run() {
  channel_.send(this_host());
  loop_.run();
  return exit_status_;
}

void Agent::on_message(Message&& message) {
  last_heard_ = Clock::now();
  std::visit([this](const auto& body) { on(body); }, message);
}

void Agent::refuse_start(std::uint32_t process, const std::string& reason) {
  ProcessOutput message;
  message.process = process;
  message.error = true;
  message.bytes.assign(reason.begin(), reason.end());
  channel_.send(message);
  ProcessEnded ended;
  ended.process = process;
  ended.status = 127 << 8;
  channel_.send(ended);
}

void Agent::on(const Start& request) {
  if (kill_time_) return;
  ChildOptions child;
  child.environment = request.environment;
  child.arguments = request.arguments;
  if (child.arguments.empty()) {
    const auto command = parse_remote_command(
        request.text, [&](std::string_view name) { return value_of(name, request.environment); });
    if (!command) return refuse_start(request.process, command.error());
    child.arguments = command->arguments;
    for (const Variable& variable : command->environment) {
      child.environment.push_back(variable.name + "=" + variable.value);
    }
  }
  child.environment.push_back(std::string(kAgentVariable) + "=" +
                              to_string(address_of(reports_.write)));
  for (std::string& variable : folders_.environment()) {
    child.environment.push_back(std::move(variable));
  }
  child.folder = request.folder;
  UniqueFd input;
  if (!request.input.empty())
    input.reset(::open(request.input.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  child.input = input.get();
  Pipe output = make_pipe(), error = make_pipe();
  child.output = output.write.get();
  child.error = error.write.get();
  child.dies_with_parent = true;
  const auto started = start_child(child);
  if (!started) return refuse_start(request.process, started.error());
  Process& process = processes_[*started];
  process.number = request.process;
  process.output = std::move(output.read);
  process.error = std::move(error.read);
  for (const bool is_error : {false, true}) {
    const UniqueFd& descriptor = is_error ? process.error : process.output;
    ::fcntl(descriptor.get(), F_SETFL, O_NONBLOCK);
    loop_.watch(descriptor.get(), POLLIN,
                [this, id = *started, is_error](short) { on_output(id, is_error); });
  }
}

void Agent::on(const SignalRanks& request) {
  for (const auto& [rank, process] : ranks_) {
    if (rank != request.except) ::kill(process.guard_process, request.number);
  }
}

void Agent::on(const EndAll& request) {
  exit_status_ = request.status;
  end_all(milliseconds(request.grace_ms), request.signal);
}

void Agent::end_all(milliseconds grace, int signal) {
  const auto time = Clock::now() + grace;
  if (!kill_time_ && grace.count() > 0) {
    for (const auto& [rank, process] : ranks_) {
      ::kill(process.guard_process, signal);
      ::kill(process.process, SIGCONT);  // a stopped process takes the signal when it continues
    }
  }
  if (!kill_time_ || time < *kill_time_) kill_time_ = time;
}

void Agent::on_time() {
  const auto now = Clock::now();
  network_.on_time(now);
  if (kill_time_ && (now >= *kill_time_ || ranks_.empty())) return finish();
  if (now >= next_heartbeat_) {
    channel_.send(Heartbeat{});
    next_heartbeat_ = now + options_.heartbeat;
  }
  if (now - last_heard_ > options_.silence) return finish();
  if (now >= next_stop_scan_) {
    report_stopped();
    next_stop_scan_ = now + kStopScan;
  }
  loop_.change(reports_.read.get(), channel_.queued() < kMostQueued ? POLLIN : 0);
}

void Agent::on_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) {
      reap();
    } else {
      end_all(milliseconds(0));  // ssh sends SIGHUP where its connection has ended
    }
  }
}

void Agent::reap() {
  int status = 0;
  pid_t process = 0;
  while ((process = ::waitpid(-1, &status, WNOHANG)) > 0) {
    const auto found = processes_.find(process);
    if (found == processes_.end()) continue;
    drain(found->second);
    on_reports();  // what its ranks' guards have said before it ended
    ProcessEnded ended;
    ended.process = found->second.number;
    ended.status = status;
    loop_.forget(found->second.output.get());
    loop_.forget(found->second.error.get());
    processes_.erase(found);
    channel_.send(ended);
  }
}

void Agent::on_reports() {
  std::array<std::byte, 65536> bytes;
  while (true) {
    const ssize_t count = ::read(reports_.read.get(), bytes.data(), bytes.size());
    if (count <= 0) return;
    report_frames_.append(std::span(bytes).first(static_cast<std::size_t>(count)));
    while (true) {
      auto message = report_frames_.next();
      if (!message || !*message) break;  // only this user's processes can write here
      on_report(std::move(**message));
    }
    if (channel_.queued() >= kMostQueued) return;
  }
}

void Agent::on_report(Message&& message) {
  if (auto* part = std::get_if<StartRemote>(&message)) {
    std::string& command = remote_commands_[part->sender];
    command += part->text;
    if (!part->complete) return;
    part->text = std::move(command);
    remote_commands_.erase(part->sender);
  } else if (const auto* started = std::get_if<RankStarted>(&message)) {
    watch_rank(*started);
    if (kill_time_) ::kill(static_cast<pid_t>(started->guard), SIGTERM);
  } else if (const auto* ended = std::get_if<RankEnded>(&message)) {
    forget_rank(ended->rank);
  }
  channel_.send(message);
}

void Agent::watch_rank(const RankStarted& started) {
  Rank& rank = ranks_[started.rank];
  rank.process = static_cast<pid_t>(started.pid);
  rank.guard_process = static_cast<pid_t>(started.guard);
  rank.guard = open_process(rank.guard_process);
  if (!rank.guard) return;
  loop_.watch(rank.guard.get(), POLLIN,
              [this, number = started.rank](short) { on_guard_ended(number); });
}

void Agent::forget_rank(int rank) {
  const auto found = ranks_.find(rank);
  if (found == ranks_.end()) return;
  loop_.forget(found->second.guard.get());
  ranks_.erase(found);
}

void Agent::on_guard_ended(int number) {
  on_reports();  // where it has said how the rank ended
  const auto found = ranks_.find(number);
  if (found == ranks_.end()) return;
  const Rank& rank = found->second;
  ::kill(rank.process, SIGKILL);
  RankEnded ended;
  ended.rank = number;
  ended.pid = rank.process;
  ended.status = SIGKILL;
  ended.ended_ns = this_host().clock_ns;
  ended.lived_ms = static_cast<std::uint64_t>(
      std::chrono::duration_cast<milliseconds>(Clock::now() - rank.started).count());
  ended.failure = "its guard (horarun --guard, pid " + std::to_string(rank.guard_process) +
                  " of its host) was killed";
  channel_.send(ended);
  forget_rank(number);
}

void Agent::on_output(pid_t id, bool error) {
  const auto found = processes_.find(id);
  if (found == processes_.end()) return;
  const UniqueFd& descriptor = error ? found->second.error : found->second.output;
  std::array<std::uint8_t, 4096> bytes;
  const ssize_t count = ::read(descriptor.get(), bytes.data(), bytes.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return loop_.forget(descriptor.get());
  ProcessOutput message;
  message.process = found->second.number;
  message.error = error;
  message.bytes.assign(bytes.begin(), bytes.begin() + count);
  channel_.send(message);
}

void Agent::drain(Process& process) {
  for (const bool error : {false, true}) {
    const UniqueFd& descriptor = error ? process.error : process.output;
    std::array<std::uint8_t, 4096> bytes;
    ssize_t count = 0;
    while ((count = ::read(descriptor.get(), bytes.data(), bytes.size())) > 0) {
      ProcessOutput message;
      message.process = process.number;
      message.error = error;
      message.bytes.assign(bytes.begin(), bytes.begin() + count);
      channel_.send(message);
    }
  }
}

void Agent::report_stopped() {
  std::set<pid_t> stopped;
  for (const ProcessState& process : descendants_of(::getpid())) {
    const auto is_it = [&](const auto& rank) { return rank.second.process == process.process; };
    if (process.state != 'T' || std::ranges::any_of(ranks_, is_it))
      continue;  // guards report ranks
    stopped.insert(process.process);
    if (stopped_.contains(process.process)) continue;
    ProcessStopped message;
    message.pid = process.process;
    message.name = process.name;
    message.stopped = true;
    channel_.send(message);
  }
  stopped_ = std::move(stopped);
}

void Agent::kill_descendants() noexcept {
  try {
    const auto end = Clock::now() + std::chrono::seconds(5);
    while (Clock::now() < end) {
      const auto left = descendants_of(::getpid());
      if (left.empty()) break;
      for (const ProcessState& process : left) ::kill(process.process, SIGKILL);
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      ::usleep(5000);
    }
  } catch (...) {  // no memory: the kernel ends what is left with the session
  }
}

void Agent::finish() {
  on_reports();
  kill_descendants();
  on_reports();
  reap();
  channel_.flush(kLastFlush);
  loop_.stop();
}

}  // namespace

int run_agent(UniqueFd in, UniqueFd out, const AgentOptions& options,
              std::optional<SealPair> seals) {
  ::signal(SIGPIPE, SIG_IGN);
  return Agent(std::move(in), std::move(out), options, std::move(seals)).run();
}

}  // namespace hora::launch
