/// horarun, and the programs that it is on the hosts of a job: the agent, its keeper, a rank's
/// guard, and the remote shell of mpirun.
#include <dlfcn.h>
#include <fcntl.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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
#include "core/launch/command/command.h"
#include "core/launch/command/mpi.h"
#include "core/launch/control/channel.h"
#include "core/launch/control/system.h"
#include "core/launch/diagnose/diagnosis.h"
#include "core/launch/guard/guard.h"
#include "core/launch/options/options.h"
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

/// Meets the other nodes; an Error where that fails, the exit status where a signal came first.
tl::expected<NodesMet, int> meet_nodes(const LaunchOptions& options) {
  // Blocked from here on: the launcher and the agent take them in the same way.
  const UniqueFd signals = signals_as_descriptor({SIGINT, SIGTERM, SIGHUP, SIGQUIT});
  const auto token = load_token(options.token_file, std::getenv(kTokenVariable));
  if (!token) throw Error(ErrorCode::invalid_argument, token.error());
  RendezvousOptions meeting;
  meeting.place = *options.rendezvous;
  meeting.nodes = options.nnodes;
  meeting.node_rank = options.node_rank;
  meeting.ranks = options.ranks_per_host.value_or(1);
  meeting.job = options.rendezvous_id;
  meeting.host = internal::host_name();
  meeting.timeout = options.start_timeout;
  meeting.say = say;
  meeting.stop_descriptor = signals.get();
  try {
    NodesMet met = meet(meeting, *token);
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

/// On a node other than 0: node 0's agent.
int serve(Node node_0) {
  const std::string name = "node 0 (" + node_0.host + ")";
  const AgentEnding ending = run_agent(std::move(node_0.connection), name);
  if (!ending.cut_off.empty()) {
    say("the ranks of this node were ended: " + ending.cut_off);
  } else if (ending.status != 0) {
    say("the job has ended with exit status " + std::to_string(ending.status) + "; " + name +
        " says why");
  }
  return ending.status;
}

int run(const LaunchOptions& options) {
  const char* const allowed = std::getenv("OMPI_ALLOW_RUN_AS_ROOT");
  if (::geteuid() == 0 && !options.allow_run_as_root && (allowed == nullptr || *allowed != '1')) {
    return refuse(
        "it is run as root, under which a mistake of the program can destroy the system; "
        "run it as another user, or give --allow-run-as-root");
  }
  NodesMet met;
  if (options.rendezvous && options.dry_run) {  // named by their numbers
    for (int node = 0; node < options.nnodes; ++node) {
      met.nodes.push_back({"node" + std::to_string(node), {}, options.ranks_per_host.value_or(1)});
    }
  } else if (options.rendezvous) {
    auto nodes = meet_nodes(options);
    if (!nodes) return nodes.error();
    met = std::move(*nodes);
    if (met.node_rank != 0) return serve(std::move(met.nodes.front()));
  }
  auto job = make_job(options, std::filesystem::read_symlink("/proc/self/exe"), std::move(met));
  if (!job) return refuse(job.error());
  for (const std::string& notice : job->notices) say(notice);
  if (options.dry_run) {
    std::fputs(dry_run_text(*job).c_str(), stdout);
    return 0;
  }
  return run_launcher(std::move(job->launcher));
}

/// Returns the function `name` of the first library that can be loaded; `files` are paths, or names
/// that the dynamic linker searches for. The error says what was tried and what failed.
template <class Function>
tl::expected<Function*, std::string> function_of(const std::vector<std::string>& files,
                                                 const char* name) {
  std::vector<std::string> failures;
  for (const std::string& file : files) {
    void* const library = ::dlopen(file.c_str(), RTLD_LAZY);
    if (library == nullptr) {
      failures.push_back(printable(::dlerror()));
      continue;
    }
    if (void* const found = ::dlsym(library, name)) return reinterpret_cast<Function*>(found);
    return tl::unexpected(fmt::format("{} has no function {}", file, name));
  }
  return tl::unexpected(fmt::format("{}", fmt::join(failures, "; ")));
}

tl::expected<std::string, std::string> mpi_version() {
  constexpr std::size_t kLongest = 8192;  // MPICH's MPI_MAX_LIBRARY_VERSION_STRING is largest
  // Without the packages for compiling there are the names alone with which programs are linked.
  std::vector<std::string> files{HORA_BUILT_WITH_MPI_LIBRARY, "libmpi.so.40"};
  if (!std::string_view(HORA_BUILT_WITH_MPI).starts_with("Open MPI")) {
    files = {HORA_BUILT_WITH_MPI_LIBRARY, "libmpi.so.12", "libmpich.so.12"};
  }
  return function_of<int(char*, int*)>(files, "MPI_Get_library_version").map([](auto* function) {
    std::array<char, kLongest + 1> text{};
    int length = 0;
    function(text.data(), &length);
    const std::string_view all(text.data());
    return printable(all.substr(0, all.find_first_of(",\n")));
  });
}

/// Calls a function that gives a version as a number.
tl::expected<int, std::string> version_number(const std::vector<std::string>& files,
                                              const char* name) {
  const auto function = function_of<int(int*)>(files, name);
  if (!function) return tl::unexpected(function.error());
  int number = 0;
  const int error = (*function)(&number);
  if (error == 0) return number;
  return tl::unexpected(fmt::format("{} has failed with error {}", name, error));
}

std::string mpirun_text(const std::string& path) {
  const auto mpi = find_mpi(path);
  if (!mpi) return fmt::format("built with {}; {}", HORA_BUILT_WITH_MPI, mpi.error());
  const std::string text = fmt::format("built with {}; started by {} ({} {})", HORA_BUILT_WITH_MPI,
                                       mpi->mpirun, name_of(mpi->flavour), mpi->version);
  if (std::string_view(HORA_BUILT_WITH_MPI).starts_with(name_of(mpi->flavour))) return text;
  return fmt::format("{}, which starts other programs: name the mpirun of {} with --mpirun", text,
                     HORA_BUILT_WITH_MPI);
}

/// Says what this build has, what this host has for it, and how to get what is missing; `mpirun` is
/// the value of --mpirun.
std::string check_build(const std::string& mpirun) {
  const auto library = mpi_version();
  std::string cuda = "no: cmake --preset cuda, where CUDA 12 and NCCL 2.19 are installed";
  std::string nccl = "no: it belongs to a build with CUDA";
  if (*HORA_BUILT_WITH_CUDA != '\0') {
    const auto driver = version_number({"libcuda.so.1"}, "cuDriverGetVersion");
    cuda = fmt::format("built with {}; ", HORA_BUILT_WITH_CUDA) +
           (driver ? fmt::format("the driver supports {}.{}", *driver / 1000, *driver % 1000 / 10)
                   : fmt::format("no driver: {}; install NVIDIA's driver (containers: docker run "
                                 "--gpus all)",
                                 driver.error()));
    const auto loaded =
        version_number({HORA_BUILT_WITH_NCCL_LIBRARY, "libnccl.so.2"}, "ncclGetVersion");
    nccl = fmt::format("built with {}; ", HORA_BUILT_WITH_NCCL) +
           (loaded ? fmt::format("loaded is {}.{}.{}", *loaded / 10000, *loaded / 100 % 100,
                                 *loaded % 100)
                   : fmt::format("it cannot be loaded: {}; install libnccl2, or set "
                                 "LD_LIBRARY_PATH to its folder",
                                 loaded.error()));
  }
  const std::string_view torch(HORA_BUILT_WITH_TORCH);
  return fmt::format(
      "hora      {}\nMPI       {}\n          its library: {}\nLibTorch  {}\nCUDA      {}\n"
      "NCCL      {}\n",
      HORA_VERSION, mpirun_text(mpirun),
      library
          ? *library
          : fmt::format("cannot be used: {}; install it (Debian: libopenmpi3 or libmpich12), or "
                        "set LD_LIBRARY_PATH to its folder",
                        library.error()),
      !torch.empty() ? torch
                     : "no: configure with -DHORA_TORCH=ON, where libtorch-dev or another LibTorch "
                       "is installed",
      cuda, nccl);
}

/// Stands in the place of ssh: mpirun calls it with [options] host word..., and it asks the
/// launcher, through this host's agent, to start a daemon there. Returns the exit status at once: 0
/// where the agent was asked.
int run_remote_shell(std::span<const std::string> arguments) {
  ::signal(SIGPIPE, SIG_IGN);
  const auto pipe = open_report_pipe();
  if (!pipe) return refuse("--remote-shell: " + pipe.error());
  const auto host = std::ranges::find_if_not(
      arguments, [](const std::string& word) { return word.starts_with('-'); });
  if (host == arguments.end() || host->empty() || host + 1 == arguments.end()) {
    return refuse(
        "--remote-shell is for mpirun, which adds a host and a command: give it neither by hand");
  }
  const std::string text = fmt::format("{}", fmt::join(host + 1, arguments.end(), " "));
  for (std::size_t sent = 0; sent < text.size(); sent += kMostOutputBytes) {
    const StartRemote part{{},
                           ::getpid(),
                           *host,
                           text.substr(sent, kMostOutputBytes),
                           sent + kMostOutputBytes >= text.size()};
    if (!send_report(pipe->pipe, part)) return refuse("--remote-shell: the agent has ended");
  }
  return 0;
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
    case Action::check_build:
      text = check_build(options->mpirun);
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
    return run_agent({UniqueFd(STDIN_FILENO), UniqueFd(STDOUT_FILENO)}).status;
  }
  if (mode == "--guard") return run_guard(arguments.subspan(1));
  if (mode == "--keeper") return run_keeper(arguments.subspan(1));
  if (mode == "--remote-shell") return run_remote_shell(arguments.subspan(1));
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
