#include "core/launch/command/mpi_command.h"

#include <hora/printable.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <numeric>
#include <string_view>

#include "core/launch/command/command.h"

namespace hora::launch {
namespace {

using Arguments = std::vector<std::string>;

/// What these name is horarun's own: another value would start daemons past its agents, or ranks
/// that it does not know of.
constexpr std::array<std::string_view, 18> kReserved = {"plm",
                                                        "plm_rsh_agent",
                                                        "plm_ssh_agent",
                                                        "plm_rsh_args",
                                                        "plm_ssh_args",
                                                        "plm_rsh_no_tree_spawn",
                                                        "plm_ssh_no_tree_spawn",
                                                        "launcher",
                                                        "launcher-exec",
                                                        "bootstrap",
                                                        "bootstrap-exec",
                                                        "host",
                                                        "hosts",
                                                        "hostfile",
                                                        "machinefile",
                                                        "np",
                                                        "n",
                                                        "H"};

/// Signals upon which Open MPI prints its stack, with more lines than horarun and the library have
/// words: SIGBUS, SIGFPE and SIGSEGV, as by default, but not SIGABRT, whose sender says why.
const std::string kSignalsWithStack =
    std::to_string(SIGBUS) + "," + std::to_string(SIGFPE) + "," + std::to_string(SIGSEGV);

/// Open MPI knows its own host by this name, whatever the user calls it.
const std::string kLocal = "localhost";

std::string joined(const std::vector<std::string>& parts, char separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += separator;
    text += part;
  }
  return text;
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
  /// What the environment has for it does not hold.
  Line& without(const std::string& name) {
    return is_among(input_.extra_arguments, name) ? *this : add({"--mca", name, ""});
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

/// "a:2,b:2". `local_name`: what this flavour knows the local host by, whatever the user calls it;
/// empty for the user's name.
std::string host_list(const MpiCommandInput& input, const std::string& local_name) {
  std::vector<std::string> hosts;
  for (const MpiHost& host : input.hosts) {
    const bool renamed = host.is_local && !local_name.empty();
    hosts.push_back((renamed ? local_name : host.name) + ":" + std::to_string(host.ranks));
  }
  return joined(hosts, ',');
}

std::string tcp_networks(const MpiNetwork& network) {
  return joined(network.subnets.empty() ? network.interfaces : network.subnets, ',');
}

/// On one host ranks need no sockets, with which they would listen to all networks.
std::string transports(const MpiCommandInput& input) {
  return input.hosts.size() == 1 ? "^tcp,ofi" : "";
}

/// Hosts that reach each other so are one machine.
bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

Command open_mpi_4(const MpiCommandInput& input) {
  const std::string networks = tcp_networks(input.network);
  Line line(input);
  line.add({"--noprefix"})
      .parameter("--mca", "plm", "rsh")
      .parameter("--mca", "plm_rsh_agent", joined(input.remote_shell, ' '))
      .without("plm_rsh_args")  // Kubernetes' MPI operator sets it in the environment, for ssh
      .parameter("--mca", "plm_rsh_no_tree_spawn", "1")
      .parameter("--mca", "orte_leave_session_attached", "1")
      .parameter("--mca", "orte_launch_agent", input.mpi.daemon)
      .parameter("--mca", "ras", "^slurm,tm,gridengine,lsf,loadleveler,alps")
      // Two daemons on one machine may crash where they share hwloc's topology in memory.
      .parameter("--mca", "rtc_hwloc_vmhole", "none")
      .variable("OMPI_MCA_opal_signal", kSignalsWithStack)
      .option("--map-by", "slot")
      .option("--rank-by", "slot")
      .option("--bind-to", "none")
      .variable("OMPI_MCA_btl", transports(input))
      .variable("OMPI_MCA_oob_tcp_if_include", networks)
      .variable("OMPI_MCA_btl_tcp_if_include", networks)
      .root("OMPI");
  if (input.verbose) line.add({"--display-map"});
  // In a list of hosts its own comes first, wherever it stands.
  const auto local = std::ranges::find_if(input.hosts, &MpiHost::is_local);
  const bool sorted = local == input.hosts.end() || local == input.hosts.begin();
  return sorted ? line.finished("--host", host_list(input, kLocal)) : line.finished_by_host(kLocal);
}

Command open_mpi_5(const MpiCommandInput& input) {
  const MpiNetwork& network = input.network;
  const std::string daemons_networks =
      is_loopback(network.local_address) ? "" : joined(network.interfaces, ',');
  Line line(input);
  line.add({"--noprefix", "--leave-session-attached"})
      .parameter("--prtemca", "plm", "ssh")
      .parameter("--prtemca", "plm_ssh_agent", joined(input.remote_shell, ' '))
      .parameter("--prtemca", "plm_ssh_no_tree_spawn", "1")
      .parameter("--prtemca", "prte_launch_agent", input.mpi.daemon)
      .parameter("--prtemca", "ras", "^slurm,pbs,lsf,gridengine,flux")
      .variable("OMPI_MCA_opal_signal", kSignalsWithStack)
      .option("--map-by", "slot")
      .option("--rank-by", "slot")
      .option("--bind-to", "none")
      .variable("OMPI_MCA_btl", transports(input))
      .variable("PRTE_MCA_prte_if_include", daemons_networks)
      .variable("OMPI_MCA_btl_tcp_if_include", tcp_networks(network))
      .root("OMPI")
      .root("PRTE");
  if (input.verbose) line.add({"--display", "map"});
  return line.finished("--host", host_list(input, kLocal));
}

Command hydra(const MpiCommandInput& input) {
  const std::string& address = input.network.local_address;
  const Arguments more(input.remote_shell.begin() + 1, input.remote_shell.end());
  Line line(input);
  line.option("-launcher", "rsh")
      .option("-launcher-exec", input.remote_shell.front())
      .variable("HYDRA_LAUNCHER_EXTRA_ARGS", joined(more, ' '))
      .option("-rmk", "user")
      .option("-bind-to", "none")
      .add({"-genvnone"});
  if (!address.empty()) line.option("-localhost", address);
  if (input.verbose) line.add({"-verbose"});
  return line.finished("-hosts", host_list(input, address));
}

std::string wrong_with_hosts(const std::vector<MpiHost>& hosts) {
  if (hosts.empty()) return "there is no host to start ranks on";
  const auto local = std::ranges::count_if(hosts, &MpiHost::is_local);
  if (local > 1) return "two of the hosts are this machine";
  for (const MpiHost& host : hosts) {
    if (host.ranks < 1) return "host " + in_quotes(host.name) + " is given no rank";
    if (!is_host_name(host.name) || host.name.find(':') != std::string::npos) {
      return "mpirun's list of hosts cannot carry " + in_quotes(host.name) +
             "; give a name of letters, digits, '.', '_' and '-', or an IPv4 address (for an IPv6 "
             "address a name in /etc/hosts)";
    }
  }
  return {};
}

std::string wrong_with_shell(const Arguments& words) {
  if (words.empty()) return "there is no remote shell";
  for (const std::string& word : words) {
    if (!word.empty() && word.find_first_of(" \t\n:,\"'\\") == std::string::npos) continue;
    return "mpirun's option for the remote shell cannot carry " + in_quotes(word) +
           ", which holds a blank, a colon, a comma, a quotation mark or a backslash; install "
           "horarun in a folder without";
  }
  return {};
}

std::string wrong_with_ranks_command(const Arguments& words) {
  if (words.empty()) return "there is nothing for a rank to run";
  if (std::ranges::find(words, ":") == words.end()) return {};
  return "mpirun takes the word \":\" for the start of another program";
}

std::string wrong_with_extra(const Arguments& arguments) {
  for (const std::string& argument : arguments) {
    const bool option = argument.starts_with('-') || argument.starts_with("plm");
    if (!option || std::ranges::find(kReserved, without_dashes(argument)) == kReserved.end()) {
      continue;
    }
    return "--mpi-args: " + in_quotes(argument) +
           " is horarun's own: it starts mpirun's daemons through its agents; hosts and numbers of "
           "ranks come from -H, --hostfile and -np, the port of ssh from --ssh-port; leave it out";
  }
  return {};
}

}  // namespace

tl::expected<Command, std::string> mpi_command(const MpiCommandInput& input) {
  for (const std::string& wrong :
       {wrong_with_hosts(input.hosts), wrong_with_shell(input.remote_shell),
        wrong_with_ranks_command(input.rank_command), wrong_with_extra(input.extra_arguments)}) {
    if (!wrong.empty()) return tl::unexpected(wrong);
  }
  switch (input.mpi.flavour) {
    case MpiFlavour::open_mpi_4:
      return open_mpi_4(input);
    case MpiFlavour::open_mpi_5:
      return open_mpi_5(input);
    case MpiFlavour::hydra:
      return hydra(input);
  }
  return tl::unexpected(std::string("this flavour of MPI is unknown"));
}

std::vector<Variable> without_users_own(std::vector<Variable> variables,
                                        const std::vector<std::string>& set_names) {
  std::erase_if(variables, [&](const Variable& variable) {
    return std::ranges::find(set_names, variable.name) != set_names.end();
  });
  return variables;
}

}  // namespace hora::launch
