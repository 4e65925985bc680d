#include "core/launch/agent/agent.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <array>
#include <map>
#include <optional>
#include <set>

#include "core/launch/agent/host_processes.h"
#include "core/launch/agent/preparation.h"
#include "core/launch/control/channel.h"
#include "core/launch/control/child_process.h"
#include "core/launch/network/network_trial.h"
#include "core/launch/watch/ending.h"

namespace hora::launch {
namespace {

using std::chrono::milliseconds;

/// More than this waiting for the launcher: what guards report waits in their pipe.
constexpr std::size_t kMostQueued = std::size_t{4} << 20;
constexpr milliseconds kTick{100};
constexpr milliseconds kStopScan{2000};
constexpr milliseconds kLastFlush{2000};
constexpr milliseconds kKillLimit{5000};
/// From a rank's SIGKILL until its guard has said so, and has written its flight record.
constexpr milliseconds kReportTime{1000};

class Agent {
 public:
  Agent(UniqueFd in, UniqueFd out, const AgentOptions& options, std::optional<SealPair> seals);
  ~Agent() { kill_descendants(kKillLimit); }
  AgentEnding run();

 private:
  void on_message(Message&& message);
  void on(const Prepare& request) { channel_.send(prepare(request)); }
  void on(const Start& request);
  void on(const SignalRanks& request) { ranks_.signal(request.number, request.except); }
  void on(const EndAll& request);
  void on(const TellNetwork& request) { network_.on(request); }
  void on(const TryNetwork& request) { network_.on(request); }
  template <class Other>
  void on(const Other&) {}

  void on_time();
  void on_signals();
  void on_reports();
  void on_report(Message&& message);
  void on_guard_ended(int rank);
  void reap();
  void report_stopped();
  void end_all(milliseconds grace, int signal = SIGTERM);
  void end_alone(const std::string& why);
  void finish();

  const AgentOptions options_;
  EventLoop loop_;
  Channel channel_;
  StartedProcesses processes_{loop_, [this](const Message& message) { channel_.send(message); }};
  RunningRanks ranks_{loop_, [this](int rank) { on_guard_ended(rank); }};
  AgentNetwork network_{loop_, [this](const Message& message) { channel_.send(message); }};
  SessionFolders folders_;
  Pipe reports_;
  FrameReader report_frames_;
  UniqueFd signals_;
  std::map<std::int64_t, std::string> remote_commands_;  ///< in parts, by sender
  std::set<std::int64_t> stopped_;
  AgentEnding ending_;
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
          [this](const std::string& why) { end_alone(options_.launcher + " is gone: " + why); },
          std::move(seals)),
      reports_(make_pipe()),
      signals_(
          signals_as_descriptor({SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})) {
  // What daemons leave behind becomes this process's child, and so is found and ended.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  start_keeper(folders_);
  ::fcntl(reports_.read.get(), F_SETFL, O_NONBLOCK);
  loop_.watch(reports_.read.get(), POLLIN, [this](short) { on_reports(); });
  loop_.watch(signals_.get(), POLLIN, [this](short) { on_signals(); });
  loop_.each(kTick, [this] { on_time(); });
}

AgentEnding Agent::run() {
  channel_.send(this_host());
  loop_.run();
  return ending_;
}

void Agent::on_message(Message&& message) {
  last_heard_ = Clock::now();
  std::visit([this](const auto& body) { on(body); }, message);
}

void Agent::on(const Start& request) {
  if (kill_time_) return;
  std::vector<std::string> variables = folders_.environment();
  variables.push_back(std::string(kAgentVariable) + "=" + to_string(address_of(reports_.write)));
  processes_.start(request, variables);
}

void Agent::on(const EndAll& request) {
  ending_ = {.status = request.status};
  end_all(milliseconds(request.grace_ms), request.signal);
}

void Agent::end_all(milliseconds grace, int signal) {
  const auto time = Clock::now() + grace;
  if (!kill_time_ && grace.count() > 0) {
    ranks_.signal(signal, -1);
    ranks_.resume();  // a stopped process takes the signal when it continues
  }
  if (!kill_time_ || time < *kill_time_) kill_time_ = time;
}

/// Without the launcher's word.
void Agent::end_alone(const std::string& why) {
  if (!kill_time_) ending_.cut_off = why;
  end_all(milliseconds(0));
}

void Agent::on_time() {
  const auto now = Clock::now();
  network_.on_time(now);
  if (now - last_heard_ > options_.silence) {
    const auto limit = std::chrono::duration_cast<std::chrono::seconds>(options_.silence);
    end_alone(options_.launcher + " has not been heard from for " + std::to_string(limit.count()) +
              " s: it hangs, or the network to it is cut");
  }
  if (kill_time_) {
    if (now >= *kill_time_) ranks_.kill();
    if (ranks_.empty() || now >= *kill_time_ + kReportTime) return finish();
  }
  if (now >= next_heartbeat_) {
    channel_.send(Heartbeat{});
    next_heartbeat_ = now + options_.heartbeat;
  }
  if (now >= next_stop_scan_) {
    report_stopped();
    next_stop_scan_ = now + kStopScan;
  }
  loop_.change(reports_.read.get(), channel_.queued() < kMostQueued ? POLLIN : 0);
}

void Agent::on_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    switch (info.ssi_signo) {
      case SIGCHLD:
        reap();
        break;
      case SIGTERM:  // from Slurm, which tells the agents of all hosts before it kills
      case SIGUSR1:
      case SIGUSR2:
        ranks_.signal(static_cast<int>(info.ssi_signo), -1);
        break;
      default:
        // ssh sends SIGHUP where its connection has ended.
        end_alone("this process was sent " + signal_text(static_cast<int>(info.ssi_signo)));
    }
  }
}

void Agent::reap() {
  int status = 0;
  pid_t process = 0;
  while ((process = ::waitpid(-1, &status, WNOHANG)) > 0) {
    if (!processes_.has(process)) continue;
    on_reports();  // what its ranks' guards have said before it ended
    processes_.on_ended(process, status);
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
    ranks_.add(*started);
    if (kill_time_) ::kill(static_cast<pid_t>(started->guard), SIGTERM);
  } else if (const auto* ended = std::get_if<RankEnded>(&message)) {
    ranks_.remove(ended->rank);
  }
  channel_.send(message);
}

void Agent::on_guard_ended(int rank) {
  on_reports();  // where it has said how the rank ended
  if (const auto ended = ranks_.kill_unguarded(rank)) channel_.send(*ended);
}

void Agent::report_stopped() {
  std::set<std::int64_t> stopped;
  for (const ProcessStat& process : descendants_of(::getpid())) {
    if (process.state != internal::ProcessState::stopped) continue;
    if (ranks_.has(static_cast<pid_t>(process.pid))) continue;  // its guard reports it
    stopped.insert(process.pid);
    if (stopped_.contains(process.pid)) continue;
    ProcessStopped message;
    message.pid = process.pid;
    message.name = process.name;
    message.stopped = true;
    channel_.send(message);
  }
  stopped_ = std::move(stopped);
}

void Agent::finish() {
  on_reports();
  kill_descendants(kKillLimit);
  on_reports();
  reap();
  channel_.flush(kLastFlush);
  loop_.stop();
}

}  // namespace

AgentEnding run_agent(UniqueFd in, UniqueFd out, const AgentOptions& options,
                      std::optional<SealPair> seals) {
  ::signal(SIGPIPE, SIG_IGN);
  return Agent(std::move(in), std::move(out), options, std::move(seals)).run();
}

}  // namespace hora::launch
