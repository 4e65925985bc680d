#include "core/launch/supervisor/launcher.h"

#include <fcntl.h>
#include <hora/printable.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>

#include "core/launch/control/channel.h"
#include "core/launch/control/child_process.h"
#include "core/launch/watch/ending.h"

namespace hora::launch {
namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::milliseconds kHeartbeat{5000};
constexpr std::chrono::milliseconds kLocalAgentsEnd{2000};
constexpr std::size_t kMostErrorText = 1000;
constexpr int kOutputError = 74;  ///< sysexits.h, EX_IOERR

class Launcher {
 public:
  explicit Launcher(LauncherOptions& options);
  ~Launcher();
  int run();

 private:
  /// One host's agent, or the program (ssh) that connects with it.
  struct Agent {
    pid_t process = 0;
    std::unique_ptr<Channel> channel;
    UniqueFd error;
    std::string error_text;  ///< the end of what it has written there
    bool lost = false;
  };

  RankOutputOptions output_options();
  void erase_table();
  void say_lost_output();
  void start_agent(std::size_t host);
  void connect(std::size_t host, UniqueFd connection);
  void on_message(std::size_t host, Message&& message);
  void on_error_output(std::size_t host);
  void on_lost(std::size_t host, const std::string& reason);
  void on_signals();
  void carry_out(std::vector<Instruction> actions);
  void carry_out(const SendTo& action);
  void carry_out(const Say& action);
  void carry_out(const ShowOutput& action);
  void carry_out(const Finish& action);
  static Moment now() {
    return std::chrono::duration_cast<Moment>(Clock::now().time_since_epoch());
  }

  LauncherOptions& options_;
  EventLoop loop_;
  Supervisor supervisor_;
  std::optional<LiveView> live_;
  RankOutputWriter output_;
  UniqueFd signals_;
  std::vector<Agent> agents_;
  Clock::time_point next_heartbeat_ = Clock::now();
  int status_ = 0;
  bool lost_output_was_said_ = false;
};

Launcher::Launcher(LauncherOptions& options)
    : options_(options),
      supervisor_(options.plan, now()),
      output_(output_options()),
      signals_(
          signals_as_descriptor({SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2})) {
  if (options.live) live_.emplace(*options.live, options.plan.hosts, now());
}

/// An agent ends with its connection, and removes its folders then, which it may just have made. On
/// other hosts that goes on without what has connected it, such as ssh.
Launcher::~Launcher() {
  for (Agent& agent : agents_) agent.channel.reset();
  const auto limit = Clock::now() + kLocalAgentsEnd;
  for (std::size_t host = 0; host < agents_.size(); ++host) {
    const pid_t process = agents_[host].process;
    if (process <= 0) continue;
    bool has_ended = false;
    while (host == options_.plan.launcher_host && !has_ended && Clock::now() < limit) {
      has_ended = ::waitpid(process, nullptr, WNOHANG) == process;
      if (!has_ended) ::usleep(10000);
    }
    if (has_ended) continue;
    ::kill(process, SIGKILL);
    ::waitpid(process, nullptr, 0);
  }
}

int Launcher::run() {
  loop_.watch(signals_.get(), POLLIN, [this](short) { on_signals(); });
  loop_.each(kTick, [this] {
    if (Clock::now() >= next_heartbeat_) {
      next_heartbeat_ = Clock::now() + kHeartbeat;
      for (Agent& agent : agents_) {
        if (agent.channel) agent.channel->send(Heartbeat{});
      }
    }
    output_.on_time(Clock::now());
    say_lost_output();
    carry_out(supervisor_.on_time(now()));
    if (live_) live_->on_time(output_.in_line(), now());
  });
  agents_.resize(options_.agents.size());
  for (std::size_t host = 0; host < agents_.size(); ++host) start_agent(host);
  loop_.run();
  erase_table();
  output_.finish();
  say_lost_output();
  return status_ == 0 && lost_output_was_said_ ? kOutputError : status_;
}

void Launcher::say_lost_output() {
  if (output_.failure().empty() || std::exchange(lost_output_was_said_, true)) return;
  carry_out(Say{"output of ranks is lost: " + output_.failure()});
}

RankOutputOptions Launcher::output_options() {
  RankOutputOptions output = options_.output;
  output.before_output = [this] { erase_table(); };
  return output;
}

void Launcher::erase_table() {
  if (live_) live_->erase();
}

void Launcher::start_agent(std::size_t host) {
  if (options_.agents[host].connection) {
    return connect(host, std::move(options_.agents[host].connection));
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw std::system_error(errno, std::generic_category(), "socketpair");
  }
  UniqueFd here(ends[0]), there(ends[1]);
  Pipe error = make_pipe();
  Agent& agent = agents_[host];
  const auto process = start_child({.arguments = options_.plan.hosts[host].agent_command,
                                    .input = there.get(),
                                    .output = there.get(),
                                    .error = error.write.get(),
                                    .own_session = true});
  if (!process) return on_lost(host, process.error());
  agent.process = *process;
  agent.error = std::move(error.read);
  ::fcntl(agent.error.get(), F_SETFL, O_NONBLOCK);
  loop_.watch(agent.error.get(), POLLIN, [this, host](short) { on_error_output(host); });
  connect(host, std::move(here));
}

void Launcher::connect(std::size_t host, UniqueFd connection) {
  UniqueFd out(::fcntl(connection.get(), F_DUPFD_CLOEXEC, 3));
  agents_[host].channel = std::make_unique<Channel>(
      loop_, std::move(connection), std::move(out),
      [this, host](Message&& message) { on_message(host, std::move(message)); },
      [this, host](const std::string& reason) { on_lost(host, reason); },
      std::move(options_.agents[host].seals));
}

void Launcher::on_message(std::size_t host, Message&& message) {
  if (const auto* output = std::get_if<RankOutput>(&message)) {
    output_.write(output->rank, options_.plan.hosts[host].name, output->error,
                  {reinterpret_cast<const char*>(output->bytes.data()), output->bytes.size()});
  }
  if (live_) live_->on_message(host, message, now());
  carry_out(supervisor_.on_message(host, message, now()));
}

void Launcher::on_error_output(std::size_t host) {
  Agent& agent = agents_[host];
  std::array<char, 4096> bytes;
  const ssize_t count = ::read(agent.error.get(), bytes.data(), bytes.size());
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return loop_.forget(agent.error.get());
  agent.error_text.append(bytes.data(), static_cast<std::size_t>(count));
  if (agent.error_text.size() > kMostErrorText) {
    agent.error_text.erase(0, agent.error_text.size() - kMostErrorText);
  }
}

void Launcher::on_lost(std::size_t host, const std::string& reason) {
  Agent& agent = agents_[host];
  if (std::exchange(agent.lost, true)) return;
  LostAgent lost{.how = reason};
  if (agent.process > 0) {
    // The connection ends just before its process does.
    int status = 0;
    for (int attempt = 0; attempt < 20; ++attempt) {
      const pid_t ended = ::waitpid(agent.process, &status, WNOHANG);
      if (ended == agent.process) {
        agent.process = 0;
        lost.how = options_.plan.hosts[host].agent_command.front() + " " + status_text(status);
        lost.status = status;
        break;
      }
      ::usleep(10000);
    }
    on_error_output(host);
    while (agent.error_text.ends_with('\n')) agent.error_text.pop_back();
    if (!agent.error_text.empty()) lost.how += ": " + printable(agent.error_text);
  }
  carry_out(supervisor_.on_lost(host, lost, now()));
}

void Launcher::on_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) continue;  // its connection ends, too
    carry_out(supervisor_.on_signal(static_cast<int>(info.ssi_signo), now()));
  }
}

void Launcher::carry_out(std::vector<Instruction> actions) {
  for (const Instruction& action : actions) {
    std::visit([this](const auto& each) { carry_out(each); }, action);
  }
}

void Launcher::carry_out(const SendTo& action) {
  if (const auto& channel = agents_[action.host].channel) channel->send(action.message);
}

void Launcher::carry_out(const Say& action) {
  if (action.verbose && !options_.verbose) return;
  erase_table();
  std::fprintf(stderr, "horarun: %s\n", action.text.c_str());
}

void Launcher::carry_out(const ShowOutput& action) {
  if (action.verbose && !options_.verbose) return;
  erase_table();
  std::fputs(action.text.c_str(), stderr);
}

void Launcher::carry_out(const Finish& action) {
  status_ = action.status;
  loop_.stop();
}

}  // namespace

int run_launcher(LauncherOptions options) {
  ::signal(SIGPIPE, SIG_IGN);
  return Launcher(options).run();
}

}  // namespace hora::launch
