#include "core/launch/program/job.h"

#include <spdlog/fmt/fmt.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "core/base/process.h"
#include "core/launch/command/mpi.h"
#include "core/launch/guard/guard.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

/// The segment that Open MPI makes for each rank (btl_vader_segment_size), and several times what a
/// rank and its guard have taken when MPI has begun (5 MiB).
constexpr RankNeeds kRankNeeds{.shared_memory = internal::kSharedMemoryOfRank,
                               .memory = std::uint64_t{16} << 20};

std::vector<std::string> texts_of(const Variables& variables) {
  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(fmt::format("{}={}", name, value));
  return result;
}

/// Variables of all processes of the job, from horarun's flags.
Variables variables_of_flags(const LaunchOptions& options) {
  Variables result;
  for (const SettingAssignment& each : options.settings) result[each.variable] = each.value;
  for (const ForwardedVariable& each : options.variables) {
    if (each.value) result[each.name] = *each.value;
  }
  // Also where a variable says otherwise.
  for (const char* mpi : {"OMPI", "PRTE"}) {
    if (!options.allow_run_as_root) break;
    result[fmt::format("{}_ALLOW_RUN_AS_ROOT", mpi)] = "1";
    result[fmt::format("{}_ALLOW_RUN_AS_ROOT_CONFIRM", mpi)] = "1";
  }
  return result;
}

/// Variables of the processes on other hosts: the flags', and those of this process that travel.
Variables variables_of_hosts(const LaunchOptions& options) {
  Variables variables = variables_of_flags(options);
  std::vector<std::string> named;
  for (const ForwardedVariable& each : options.variables) named.push_back(each.name);
  variables.merge(forwarded_variables(environment_of_process(), named));
  return variables;
}

/// Adds those of `more` that neither `variables` nor this process's environment has.
void add_unless_set(Variables& variables, const std::vector<Variable>& more) {
  for (const auto& [name, value] : more) {
    if (!variable_of_process(name)) variables.emplace(name, value);
  }
}

/// For NCCL, UCX and their like, where neither the user's environment nor `variables` has them.
/// Without a network, on one host alone, they use loopback.
void add_network_variables(Variables& variables, std::size_t host, const NetworkChoice* network) {
  const std::vector<std::string> loopback{"lo"};
  add_unless_set(variables,
                 network_variables(network == nullptr ? loopback : network->interfaces.at(host),
                                   !internal::active_rdma_ports().empty()));
}

/// The ranks' own number of threads, where the user has set it.
std::string omp_num_threads(const Variables& flags) {
  constexpr char kName[] = "OMP_NUM_THREADS";
  const auto flag = flags.find(kName);
  return flag == flags.end() ? variable_of_process(kName).value_or("") : flag->second;
}

/// HORARUN_COLUMNS: how many a rank's line has on the terminal behind `prefix` bytes, for programs
/// that write one line over and over. Nothing where there is no terminal.
Variables columns_of_terminal(std::size_t prefix) {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col <= prefix) return {};
  return {{"HORARUN_COLUMNS", std::to_string(size.ws_col - prefix)}};
}

/// Standard input, where it is a file or a pipe: the first rank reads it.
std::string input_path() {
  return ::isatty(STDIN_FILENO) != 0 ? "" : fmt::format("/proc/{}/fd/0", ::getpid());
}

/// mpirun's command and environment, when the network is known.
struct MpirunOfJob {
  MpiCommandInput input;
  Variables flags;  ///< from horarun's flags
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
    Variables variables = flags;
    add_unless_set(variables, line->environment);
    add_network_variables(variables, launcher_host, network);
    Start result;
    result.arguments = line->arguments;
    if (input.hosts.front().is_local) {
      variables[kInputVariable] = input_path();
    } else {
      result.input = input_path();
    }
    result.environment = texts_of(variables);
    result.folder = folder;
    return result;
  }
};

constexpr char kShellVariable[] = "HORARUN_SSH";
constexpr int kWatchInterval = 10;  // seconds
// An elastic job loses a host sooner, and hears out fewer ranks before it goes on.
constexpr Moment kElasticSilence{5000}, kElasticGather{50}, kElasticGatherConsequences{300};

bool is_this_host(const std::string& name) {
  const std::string own = internal::host_name();
  return name == "localhost" || name == "127.0.0.1" || name == own ||
         name == own.substr(0, own.find('.')) || own == name.substr(0, name.find('.'));
}

/// Slurm's, or those of PBS's file, which names a host for each of its slots; none outside of an
/// allocation.
std::vector<HostSlots> hosts_of_allocation() {
  std::vector<HostSlots> hosts = or_refuse(slurm_hosts(variable_of_process));
  if (!hosts.empty()) return hosts;
  const std::string path = variable_of_process("PBS_NODEFILE").value_or("");
  if (path.empty()) return {};
  const auto text = read_input_file(path);
  if (!text) throw Refused{fmt::format("PBS_NODEFILE: the file {} {}", path, text.error())};
  return or_refuse(parse_hostfile(*text, path));
}

/// The hosts that the script has printed.
tl::expected<std::vector<HostSlots>, std::string> discovered_hosts(
    const std::string& script, std::optional<int> slots,
    const tl::expected<CapturedOutput, std::string>& output) {
  const std::string place = "--host-discovery-script " + in_quotes(script);
  if (!output) return tl::unexpected(place + ": " + output.error());
  if (output->status != 0) {
    return tl::unexpected(fmt::format("{}: it has ended with exit status {}, and printed {}", place,
                                      output->status, in_quotes(trimmed(output->text))));
  }
  return parse_hostfile(output->text, place).map([&](std::vector<HostSlots> hosts) {
    for (HostSlots& host : hosts) {
      if (!host.counted) host.slots = slots.value_or(1);
      host.counted = true;
    }
    return hosts;
  });
}

/// Those named, else an allocation's, else this host.
std::vector<HostSlots> hosts_of(const LaunchOptions& options) {
  std::vector<HostSlots> hosts = options.hosts;
  if (!hosts.empty()) return hosts;
  if (options.elastic && !options.elastic->discovery_script.empty()) {
    const std::string& script = options.elastic->discovery_script;
    return or_refuse(discovered_hosts(script, options.ranks_per_host,
                                      captured_output({script}, kDiscoveryLimit)));
  }
  hosts = hosts_of_allocation();
  if (hosts.empty()) hosts.push_back({.name = "localhost", .slots = 1, .counted = !options.np});
  for (HostSlots& host : hosts) {
    host.slots = options.ranks_per_host.value_or(host.slots);
    host.counted = host.counted || options.ranks_per_host;
  }
  return hosts;
}

std::vector<std::string> agent_command(const std::string& host, bool by_srun,
                                       const LaunchOptions& options, const std::string& self) {
  if (is_this_host(host)) return {self, "--agent"};
  if (by_srun) {
    std::vector<std::string> command = srun_prefix("srun", host);
    command.insert(command.end(), {self, "--agent"});
    return command;
  }
  const std::string replaced = variable_of_process(kShellVariable).value_or("");
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

/// Sets the hosts of the plan with their ranks, and their agents, started by ssh or srun. This host
/// is among them, for it runs mpirun, even where it has no ranks.
void place_on_hosts(const std::vector<HostRanks>& ranks, const LaunchOptions& options,
                    const std::string& self, JobPlan& plan) {
  std::vector<JobHost>& hosts = plan.hosts;
  for (const HostRanks& host : ranks) hosts.push_back({host.name, host.ranks});
  const auto local = std::ranges::find_if(hosts, is_this_host, &JobHost::name);
  plan.launcher_host = static_cast<std::size_t>(local - hosts.begin());
  if (local == hosts.end()) hosts.push_back({"localhost", 0});
  std::vector<HostSlots> allocated;
  if (!find_program("srun", variable_of_process("PATH").value_or("")).empty()) {
    allocated = slurm_hosts(variable_of_process).value_or(allocated);
  }
  for (JobHost& host : hosts) {
    const bool by_srun =
        std::ranges::find(allocated, host.name, &HostSlots::name) != allocated.end();
    host.agent_command = agent_command(host.name, by_srun, options, self);
  }
}

/// The same for nodes that have met, of which this is node 0. Nodes of one host's name are told
/// apart by their number.
void place_on_nodes(NodesMet met, const std::string& self, LauncherOptions& launcher) {
  std::vector<JobHost>& hosts = launcher.plan.hosts;
  for (std::size_t node = 0; node < met.nodes.size(); ++node) {
    const std::string& name = met.nodes[node].host;
    const bool is_only = std::ranges::count(met.nodes, name, &Node::host) == 1;
    hosts.push_back({is_only ? name : fmt::format("{}-{}", name, node), met.nodes[node].ranks});
  }
  launcher.plan.launcher_host = 0;
  hosts.front().agent_command = {self, "--agent"};
  for (Node& node : met.nodes) launcher.agents.push_back(std::move(node.connection));
}

/// The same for those of them that are left, of which `first` was node 0.
void place_on_nodes_again(const std::vector<HostRanks>& ranks, JobHost first, JobPlan& plan) {
  for (const HostRanks& host : ranks) plan.hosts.push_back({host.name, host.ranks});
  auto local = std::ranges::find(plan.hosts, first.name, &JobHost::name);
  if (local == plan.hosts.end()) local = plan.hosts.insert(local, {first.name, 0});
  local->agent_command = std::move(first.agent_command);
  plan.launcher_host = static_cast<std::size_t>(local - plan.hosts.begin());
}

/// Completes a plan that has its hosts. Returns mpirun's line for --dry-run.
Command complete_plan(const LaunchOptions& options, const std::string& self,
                      const MpiInstallation& mpi, bool prefix_output, JobPlan& plan) {
  const std::string folder = options.folder.empty()
                                 ? std::filesystem::current_path()
                                 : std::filesystem::absolute(options.folder).lexically_normal();
  Variables variables = variables_of_hosts(options);
  MpirunOfJob mpirun;
  MpiCommandInput& input = mpirun.input;
  input.mpi = mpi;
  for (std::size_t host = 0; host < plan.hosts.size(); ++host) {
    const JobHost& each = plan.hosts[host];
    if (each.ranks > 0) {
      input.hosts.push_back({each.name, each.ranks, host == plan.launcher_host});
    }
  }
  input.remote_shell = {self, "--remote-shell"};
  input.rank_command = {self, "--guard", std::string(name_of(options.binding))};
  if (options.watch) {
    input.rank_command.push_back(std::to_string(options.watch_interval.value_or(kWatchInterval)));
  }
  input.rank_command.push_back(encode_words(options.program));
  input.extra_arguments = options.mpi_args;
  input.allow_run_as_root = ::geteuid() == 0;
  input.verbose = options.verbose;
  mpirun.flags = variables_of_flags(options);
  if (!options.watch) {
    const std::string prefix = input.hosts.front().name + ":0: ";
    const auto columns = columns_of_terminal(prefix_output ? prefix.size() : 0);
    mpirun.flags.insert(columns.begin(), columns.end());
    variables.insert(columns.begin(), columns.end());
  }
  if (options.elastic) {
    const std::pair number(internal::kGenerationVariable, std::to_string(plan.generation));
    mpirun.flags.insert(number);
    variables.insert(number);
  }
  mpirun.launcher_host = plan.launcher_host;
  Command line = or_refuse(mpirun.command(nullptr));

  plan.preparation.folder = folder;
  plan.preparation.program = options.program.front();
  plan.preparation.path = variable_of_process("PATH").value_or("");
  plan.preparation.world_size = static_cast<std::uint32_t>(total_ranks(plan));
  plan.preparation.binding = name_of(options.binding);
  plan.preparation.threads = omp_num_threads(mpirun.flags);
  plan.needs = kRankNeeds;
  plan.start_timeout = std::chrono::duration_cast<Moment>(options.start_timeout);
  plan.network_interfaces = options.network_interfaces;
  plan.ending.waits = {.init_warning = options.effective.stall_warning,
                       .init = options.effective.init_timeout,
                       .stopped = options.effective.timeout};
  std::random_device random;
  plan.nonce = std::uint64_t{random()} << 32 | random();
  plan.daemon_environment = [variables = std::move(variables)](std::size_t host,
                                                               const NetworkChoice* network) {
    Variables result = variables;
    add_network_variables(result, host, network);
    return texts_of(result);
  };
  plan.mpirun = [mpirun = std::move(mpirun), folder](const NetworkChoice* network) {
    return mpirun.start(folder, network);
  };
  if (!options.elastic) return line;
  plan.elastic = true;
  plan.silence = kElasticSilence;
  plan.preparation.silence_ms = kElasticSilence.count();
  plan.preparation.elastic = true;
  plan.ending.gather = kElasticGather;
  plan.ending.gather_consequences = kElasticGatherConsequences;
  return line;
}

/// The ranks with which the job begins.
std::vector<HostRanks> first_ranks(const LaunchOptions& options,
                                   const std::vector<HostSlots>& hosts) {
  if (!options.elastic) {
    const int np = options.np.value_or(total_slots(hosts));
    return or_refuse(lay_out_ranks(hosts, np, options.oversubscribe));
  }
  const auto first = next_generation(Moment(0), hosts, {}, *options.elastic);
  if (const auto* const too_few = std::get_if<WaitForHosts>(&first)) throw Refused{too_few->text};
  return std::get<Generation>(first).hosts;
}

/// Throws Refused.
Job planned(const LaunchOptions& options, const std::string& self, NodesMet met) {
  const MpiInstallation mpi = or_refuse(find_mpi(options.mpirun));
  Job job;
  JobPlan& plan = job.launcher.plan;
  std::vector<HostSlots> hosts;
  std::optional<JobHost> node_0;
  if (!met.nodes.empty()) {
    place_on_nodes(std::move(met), self, job.launcher);
    node_0 = plan.hosts.front();
    for (const JobHost& host : plan.hosts) {
      hosts.push_back({.name = host.name, .slots = host.ranks, .counted = true});
    }
  } else {
    hosts = hosts_of(options);
    place_on_hosts(first_ranks(options, hosts), options, self, plan);
    job.launcher.agents.resize(plan.hosts.size());
  }
  RankOutputOptions& output = job.launcher.output;
  output.folder = options.output_folder;
  output.shown = options.shown_ranks;
  output.prefix = options.prefix_output == Switch::on ||
                  (options.prefix_output == Switch::automatic && total_ranks(plan) > 1 &&
                   ::isatty(STDOUT_FILENO) != 0);
  if (options.watch) {
    job.launcher.watch_interval =
        std::chrono::seconds(options.watch_interval.value_or(kWatchInterval));
  }
  job.mpirun = complete_plan(options, self, mpi, output.prefix, plan);
  if (options.elastic) {
    const auto next = [options, self, mpi, node_0,
                       prefix = output.prefix](const Generation& generation) {
      JobPlan next_plan;
      next_plan.generation = generation.number;
      if (node_0) {
        place_on_nodes_again(generation.hosts, *node_0, next_plan);
      } else {
        place_on_hosts(generation.hosts, options, self, next_plan);
      }
      complete_plan(options, self, mpi, prefix, next_plan);
      return next_plan;
    };
    const auto from_output = [script = options.elastic->discovery_script,
                              slots = options.ranks_per_host](const auto& printed) {
      return discovered_hosts(script, slots, printed);
    };
    job.launcher.elastic = {*options.elastic, std::move(hosts), next, from_output};
  }

  job.launcher.verbose = options.verbose;
  job.notices = options.notices;
  for (const ForwardedVariable& each : options.variables) {
    if (each.value || variable_of_process(each.name)) continue;
    job.notices.push_back(
        fmt::format("-x {}: it is not set, so that ranks do not get it", each.name));
  }
  return job;
}

}  // namespace

tl::expected<Job, std::string> make_job(const LaunchOptions& options, const std::string& self,
                                        NodesMet met) {
  return expected_of([&] { return planned(options, self, std::move(met)); });
}

std::string dry_run_text(const Job& job) {
  std::string text;
  for (const JobHost& host : job.launcher.plan.hosts) {
    if (!host.agent_command.empty()) text += as_shell_line({host.agent_command, {}}) + "\n";
  }
  return text + as_shell_line(job.mpirun) + "\n";
}

}  // namespace hora::launch
