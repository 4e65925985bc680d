#include "core/launch/program/job.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <span>

#include "core/launch/command/dry_run.h"
#include "core/launch/command/encoded_words.h"
#include "core/launch/command/forwarded.h"
#include "core/launch/command/mpi_command.h"
#include "core/launch/command/network_variables.h"
#include "core/launch/command/program.h"
#include "core/launch/command/slurm.h"
#include "core/launch/guard/guard.h"
#include "core/launch/program/init_limits.h"
#include "core/process.h"

extern char** environ;

namespace hora::launch {
namespace {

/// Per rank: MPI's segments.
constexpr std::uint64_t kSharedMemory = std::uint64_t{8} << 20;
constexpr char kShellVariable[] = "HORARUN_SSH";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_this_host(const std::string& name) {
  const std::string own = internal::host_name();
  return name == "localhost" || name == "127.0.0.1" || name == "::1" || name == own ||
         name == own.substr(0, own.find('.')) || own == name.substr(0, name.find('.'));
}

/// Slurm's; none outside of an allocation.
tl::expected<std::vector<HostSlots>, std::string> hosts_of_allocation() {
  const SlurmVariables variables = slurm_variables();
  std::vector<HostSlots> result;
  if (variables.job_nodelist.empty()) return result;
  const auto hosts = slurm_hosts(variables);
  if (!hosts) return tl::unexpected(hosts.error());
  for (const SlurmHost& host : *hosts) result.push_back({.name = host.name, .slots = host.slots});
  return result;
}

/// The ranks of each host, this one included: it runs mpirun even where it has no ranks.
tl::expected<std::vector<HostRanks>, std::string> lay_out(const LaunchOptions& options) {
  std::vector<HostSlots> hosts = options.hosts;
  if (hosts.empty()) {
    const auto allocation = hosts_of_allocation();
    if (!allocation) return tl::unexpected(allocation.error());
    hosts = *allocation;
  }
  if (hosts.empty()) hosts.push_back({.name = "localhost", .slots = 1, .counted = false});
  if (options.ranks_per_host) {
    for (HostSlots& host : hosts) {
      host.slots = *options.ranks_per_host;
      host.counted = true;
    }
  }
  return lay_out_ranks(hosts, options.np.value_or(total_slots(hosts)), options.oversubscribe);
}

std::vector<SettingAssignment> settings_of_process() {
  std::size_t count = 0;
  while (environ[count] != nullptr) ++count;
  return setting_assignments(std::span<const char* const>(environ, count));
}

std::vector<std::string> texts_of(const std::vector<Variable>& variables) {
  std::vector<std::string> result;
  for (const Variable& each : variables) result.push_back(each.name + "=" + each.value);
  return result;
}

/// Of all processes of the job: what horarun's flags say.
std::vector<Variable> variables_of_flags(const LaunchOptions& options) {
  std::vector<Variable> result;
  for (const SettingAssignment& setting : options.settings) {
    result.push_back({setting.variable, setting.value});
  }
  for (const ForwardedVariable& each : options.variables) {
    if (each.value) result.push_back({each.name, *each.value});
  }
  return result;
}

/// Of the processes on other hosts: those of this process that travel, and the flags'.
tl::expected<std::vector<Variable>, std::string> variables_of_hosts(const LaunchOptions& options) {
  std::vector<std::string> named;
  for (const ForwardedVariable& each : options.variables) {
    if (!each.value) named.push_back(each.name);
  }
  std::size_t count = 0;
  while (environ[count] != nullptr) ++count;
  auto variables =
      forwarded_variables(variables_of(std::span<const char* const>(environ, count)), named);
  if (!variables) return variables;
  for (Variable& each : variables_of_flags(options)) {
    std::erase_if(*variables, [&](const Variable& other) { return other.name == each.name; });
    variables->push_back(std::move(each));
  }
  return variables;
}

std::vector<std::string> agent_command(const std::string& host, const LaunchOptions& options,
                                       const std::string& self) {
  if (is_this_host(host)) return {self, "--agent"};
  if (is_allocated(slurm_variables(), host) && !find_program("srun", variable("PATH")).empty()) {
    std::vector<std::string> command = srun_prefix("srun", host);
    command.insert(command.end(), {self, "--agent"});
    return command;
  }
  const std::string replaced = variable(kShellVariable);
  std::vector<std::string> command{replaced.empty() ? "ssh" : replaced};
  if (options.ssh_port) command.insert(command.end(), {"-p", std::to_string(*options.ssh_port)});
  if (!options.ssh_identity_file.empty()) {
    command.insert(command.end(), {"-i", options.ssh_identity_file});
  }
  // A password cannot be asked for: the agent's messages come on standard input.
  command.insert(command.end(), {"-o", "BatchMode=yes", "-o",
                                 "ConnectTimeout=" + std::to_string(options.start_timeout.count()),
                                 host, "--", as_shell_word(self), "--agent"});
  return command;
}

/// What is wrong with the program, as far as this host can tell; it may be on other hosts alone.
std::string wrong_with_program(const std::string& program, const MpiInstallation& mpi) {
  const auto file = inspect_program(program, variable("PATH"));
  if (!file || !file->libraries) return {};
  return wrong_with_linked_mpi(program, linked_mpi(file->libraries->needed), mpi);
}

/// Which ranks run on which host, from -H, a hostfile or Slurm, and how their agents are started.
tl::expected<void, std::string> place_on_hosts(const LaunchOptions& options,
                                               const std::string& self, LauncherOptions& launcher) {
  const auto layout = lay_out(options);
  if (!layout) return tl::unexpected(layout.error());
  std::vector<JobHost>& hosts = launcher.plan.hosts;
  for (const HostRanks& host : *layout) hosts.push_back({host.name, host.ranks});
  const auto local = std::ranges::find_if(hosts, is_this_host, &JobHost::name);
  launcher.plan.launcher_host = static_cast<std::size_t>(local - hosts.begin());
  if (local == hosts.end()) hosts.push_back({"localhost", 0});
  for (const JobHost& host : hosts) {
    launcher.agents.push_back({.command = agent_command(host.name, options, self)});
  }
  return {};
}

/// The same for nodes that have met. Nodes of one host's name are told apart by their number.
void place_on_nodes(NodesMet met, const std::string& self, LauncherOptions& launcher) {
  std::vector<JobHost>& hosts = launcher.plan.hosts;
  for (std::size_t node = 0; node < met.nodes.size(); ++node) {
    const std::string& name = met.nodes[node].host;
    const bool is_only = std::ranges::count(met.nodes, name, &Node::host) == 1;
    hosts.push_back({is_only ? name : name + "-" + std::to_string(node), met.nodes[node].ranks});
  }
  launcher.plan.launcher_host = 0;
  launcher.agents.push_back({.command = {self, "--agent"}});
  for (JoinedNode& node : met.joined) {
    launcher.agents.push_back(
        {.connection = std::move(node.connection),
         .seals = SealPair{.send = std::move(node.send), .receive = std::move(node.receive)}});
  }
}

/// For NCCL, UCX and their like, where neither the user's environment nor `variables` has them.
void add_network_variables(std::vector<Variable>& variables, std::size_t host,
                           const NetworkChoice* network) {
  if (network == nullptr) return;
  for (Variable& each : network_variables(network->interfaces.at(host), has_rdma_device())) {
    const bool is_set = std::ranges::count(variables, each.name, &Variable::name) > 0 ||
                        std::getenv(each.name.c_str()) != nullptr;
    if (!is_set) variables.push_back(std::move(each));
  }
}

/// Of --watch.
LiveOptions live_options(const LaunchOptions& options) {
  LiveOptions live;
  live.on_terminal = ::isatty(live.descriptor) != 0;
  live.interval = std::chrono::seconds(options.watch_interval.value_or(live.on_terminal ? 1 : 10));
  return live;
}

/// Standard input, where it is a file or a pipe: the first rank reads it.
std::string input_path() {
  return ::isatty(STDIN_FILENO) != 0 ? "" : "/proc/" + std::to_string(::getpid()) + "/fd/0";
}

/// mpirun's command and environment, when the network is known.
struct MpirunOfJob {
  MpiCommandInput input;
  std::vector<Variable> flags;  ///< what horarun's flags say
  std::size_t launcher_host = 0;

  tl::expected<Command, std::string> command(const NetworkChoice* network) const {
    MpiCommandInput complete = input;
    if (network != nullptr) {
      complete.network.subnets = network->subnets;
      complete.network.local_address = to_string(network->addresses.at(launcher_host));
      const auto& names = network->interfaces.front();
      const auto is_same = [&](const auto& others) { return others == names; };
      if (std::ranges::all_of(network->interfaces, is_same)) complete.network.interfaces = names;
    }
    return mpi_command(complete);
  }

  tl::expected<Start, std::string> start(const std::string& folder,
                                         const NetworkChoice* network) const {
    auto line = command(network);
    if (!line) return tl::unexpected(line.error());
    std::vector<Variable> variables = flags;
    for (Variable& each : line->environment) {
      if (std::getenv(each.name.c_str()) == nullptr) variables.push_back(std::move(each));
    }
    add_network_variables(variables, launcher_host, network);
    Start result;
    result.arguments = line->arguments;
    if (input.hosts.front().is_local) {
      variables.push_back({kInputVariable, input_path()});
    } else {
      result.input = input_path();
    }
    result.environment = texts_of(variables);
    result.folder = folder;
    return result;
  }
};

}  // namespace

tl::expected<Job, std::string> make_job(const LaunchOptions& options, const std::string& self,
                                        NodesMet met) {
  const auto mpi = find_mpi(mpi_search(""));
  if (!mpi) return tl::unexpected(mpi.error());
  if (std::string wrong = wrong_with_program(options.program.front(), *mpi); !wrong.empty()) {
    return tl::unexpected(std::move(wrong));
  }
  const auto variables = variables_of_hosts(options);
  if (!variables) return tl::unexpected(variables.error());

  Job job;
  JobPlan& plan = job.launcher.plan;
  if (met.joined.empty()) {
    if (auto placed = place_on_hosts(options, self, job.launcher); !placed) {
      return tl::unexpected(placed.error());
    }
  } else {
    place_on_nodes(std::move(met), self, job.launcher);
  }

  MpirunOfJob mpirun;
  MpiCommandInput& input = mpirun.input;
  input.mpi = *mpi;
  for (std::size_t host = 0; host < plan.hosts.size(); ++host) {
    const auto& [name, ranks] = plan.hosts[host];
    if (ranks > 0) input.hosts.push_back({name, ranks, host == plan.launcher_host});
  }
  input.remote_shell = {self, "--remote-shell"};
  input.rank_command = {self, "--guard", std::string(name_of(options.binding))};
  if (options.watch) {
    job.launcher.live = live_options(options);
    input.rank_command.push_back(std::to_string(job.launcher.live->interval.count()));
  }
  input.rank_command.push_back(encode_words(options.program));
  input.extra_arguments = options.mpi_args;
  input.allow_run_as_root = ::geteuid() == 0;
  input.verbose = options.verbose;
  mpirun.flags = variables_of_flags(options);
  mpirun.launcher_host = plan.launcher_host;
  if (auto command = mpirun.command(nullptr); command) {
    job.mpirun = std::move(*command);
  } else {
    return tl::unexpected(command.error());
  }

  plan.preparation.folder = std::filesystem::current_path();
  plan.preparation.program = options.program.front();
  plan.preparation.path = variable("PATH");
  plan.preparation.shared_memory = kSharedMemory;
  plan.start_timeout = std::chrono::duration_cast<Moment>(options.start_timeout);
  plan.network_interfaces = options.network_interfaces;
  plan.ending.init = init_limits(options.settings, settings_of_process());
  std::random_device random;
  for (std::byte& byte : plan.nonce) byte = static_cast<std::byte>(random());
  plan.daemon_environment = [variables = *variables](std::size_t host,
                                                     const NetworkChoice* network) {
    std::vector<Variable> result = variables;
    add_network_variables(result, host, network);
    return texts_of(result);
  };
  plan.mpirun = [mpirun = std::move(mpirun), folder = plan.preparation.folder](
                    const NetworkChoice* network) { return mpirun.start(folder, network); };

  job.launcher.verbose = options.verbose;
  int ranks = 0;
  for (const JobHost& host : plan.hosts) ranks += host.ranks;
  RankOutputOptions& output = job.launcher.output;
  output.folder = options.output_folder;
  output.shown = {options.shown_ranks.begin(), options.shown_ranks.end()};
  output.prefix =
      options.prefix_output == Switch::on ||
      (options.prefix_output == Switch::automatic && ranks > 1 && ::isatty(STDOUT_FILENO) != 0);
  job.notices = options.notices;
  return job;
}

std::string dry_run_text(const Job& job) {
  std::string text;
  for (std::size_t host = 0; host < job.launcher.agents.size(); ++host) {
    text += as_shell_line({job.launcher.agents[host].command, {}}) + "\n";
  }
  return text + as_shell_line(job.mpirun) + "\n";
}

}  // namespace hora::launch
