/// horarun, and the programs that it is on the hosts of a job: the agent, its keeper, a rank's
/// guard, and the remote shell of mpirun.
#include <fcntl.h>
#include <hora/error.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "core/base/process.h"
#include "core/launch/agent/agent.h"
#include "core/launch/command/environment.h"
#include "core/launch/command/remote_shell.h"
#include "core/launch/control/secret.h"
#include "core/launch/control/system.h"
#include "core/launch/diagnose/diagnosis.h"
#include "core/launch/guard/guard.h"
#include "core/launch/options/options.h"
#include "core/launch/program/check_build.h"
#include "core/launch/program/job.h"
#include "core/launch/rendezvous/rendezvous.h"
#include "core/launch/supervisor/launcher.h"

namespace hora::launch {
namespace {

constexpr int kUsage = 2;

void say(const std::string& line) {
  std::fprintf(stderr, "horarun: %s\n", line.c_str());
}

int refuse(const std::string& text) {
  say(text);
  return kUsage;
}

/// This program's.
std::string own_path() {
  return std::filesystem::read_symlink("/proc/self/exe");
}

bool root_is_allowed(const LaunchOptions& options) {
  const char* allowed = std::getenv("OMPI_ALLOW_RUN_AS_ROOT");
  return ::geteuid() != 0 || options.allow_run_as_root || (allowed != nullptr && *allowed == '1');
}

/// Meets the other nodes; an Error where that fails, the exit status where a signal came first.
tl::expected<NodesMet, int> meet_nodes(const LaunchOptions& options) {
  // Blocked from here on: the launcher and the agent take them in the same way.
  const UniqueFd signals = signals_as_descriptor({SIGINT, SIGTERM, SIGHUP, SIGQUIT});
  RendezvousOptions meeting;
  meeting.place = *options.rendezvous;
  meeting.nodes = options.nnodes;
  meeting.node_rank = options.node_rank;
  meeting.ranks = options.ranks_per_host.value_or(1);
  meeting.job = options.rendezvous_id;
  meeting.host = internal::host_name();
  meeting.version = HORA_VERSION;
  if (!options.token_file.empty()) meeting.token_file = options.token_file;
  meeting.network_interfaces = options.network_interfaces;
  meeting.timeout = options.start_timeout;
  meeting.say = say;
  meeting.stop_descriptor = signals.get();
  try {
    NodesMet met = meet(meeting, std::getenv(kTokenVariable));
    ::unsetenv(kTokenVariable);  // ranks do not inherit it
    return met;
  } catch (const Error& error) {
    signalfd_siginfo info{};
    if (error.code() != ErrorCode::shut_down ||
        ::read(signals.get(), &info, sizeof info) != sizeof info) {
      throw;
    }
    say(error.what());
    return tl::unexpected(128 + static_cast<int>(info.ssi_signo));
  }
}

/// For --dry-run, whose nodes do not meet: they are named by their numbers.
tl::expected<NodesMet, int> nodes_to_meet(const LaunchOptions& options) {
  NodesMet met;
  for (int node = 0; node < options.nnodes; ++node) {
    met.nodes.push_back({.host = "node" + std::to_string(node),
                         .address = {},
                         .ranks = options.ranks_per_host.value_or(1)});
  }
  return met;
}

/// On a node other than 0: node 0's agent.
int serve(Node node_0) {
  const std::string name = "node 0 (" + node_0.host + ")";
  const AgentEnding ending = run_agent(std::move(node_0.connection), {.launcher = name});
  if (!ending.cut_off.empty()) {
    say("the ranks of this node were ended: " + ending.cut_off);
  } else if (ending.status != 0) {
    say("the job has ended with exit status " + std::to_string(ending.status) + "; " + name +
        " says why");
  }
  return ending.status;
}

int run(const LaunchOptions& options) {
  if (!root_is_allowed(options)) {
    return refuse(
        "it is run as root, under which a mistake of the program can destroy the system; "
        "run it as another user, or give --allow-run-as-root");
  }
  NodesMet met;
  if (options.rendezvous) {
    auto nodes = options.dry_run ? nodes_to_meet(options) : meet_nodes(options);
    if (!nodes) return nodes.error();
    met = std::move(*nodes);
    if (met.node_rank != 0) return serve(std::move(met.nodes.front()));
  }
  auto job = make_job(options, own_path(), std::move(met));
  if (!job) return refuse(job.error());
  for (const std::string& notice : job->notices) say(notice);
  if (options.dry_run) {
    if (const std::string cores = cores_of_this_host(*job); !cores.empty()) say(cores);
    std::fputs(dry_run_text(*job).c_str(), stdout);
    return 0;
  }
  return run_launcher(std::move(job->launcher));
}

int run_user_command(std::span<const std::string> arguments) {
  ::unsetenv(internal::kHostVariable);  // of a job in which this one is started
  const auto options = parse_command_line(arguments, environment_of_process());
  if (!options) return refuse(options.error());
  std::string text;
  switch (options->action) {
    case Action::run:
      return run(*options);
    case Action::help:
      text = help_text();
      break;
    case Action::version:
      text = std::string("horarun ") + HORA_VERSION + "\n";
      break;
    case Action::man:
      text = man_page(HORA_VERSION);
      break;
    case Action::completion:
      text = bash_completion();
      break;
    case Action::check_build:
      text = check_build(own_path(), options->mpirun);
      break;
    case Action::diagnose:
      const auto diagnosis = diagnose(options->diagnose_folder);
      if (!diagnosis) return refuse(diagnosis.error());
      text = to_text(*diagnosis);
      break;
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

int run_as(std::span<const std::string> arguments) {
  const std::string mode = arguments.empty() ? "" : arguments.front();
  if (mode == "--agent") {
    return run_agent({UniqueFd(STDIN_FILENO), UniqueFd(STDOUT_FILENO)}, {}).status;
  }
  if (mode == "--guard") return run_guard(arguments.subspan(1));
  if (mode == "--keeper") return run_keeper(arguments.subspan(1));
  if (mode == "--remote-shell") return run_remote_shell(arguments.subspan(1));
  if (mode == "--query-library") return run_library_query(arguments.subspan(1));
  return run_user_command(arguments);
}

}  // namespace
}  // namespace hora::launch

int main(int argc, char** argv) {
  // No descriptor of a connection or file becomes one of the standard ones.
  while (::fcntl(STDERR_FILENO, F_GETFD) < 0 || ::fcntl(STDOUT_FILENO, F_GETFD) < 0 ||
         ::fcntl(STDIN_FILENO, F_GETFD) < 0) {
    if (::open("/dev/null", O_RDWR) < 0) return 1;
  }
  const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
  try {
    const int status = hora::launch::run_as(arguments);
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
    throw std::system_error(errno, std::generic_category(), "standard output");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "horarun: %s\n", error.what());
    return 1;
  }
}
