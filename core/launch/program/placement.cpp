#include "core/launch/program/placement.h"

#include <algorithm>

#include "core/base/process.h"
#include "core/launch/command/command.h"
#include "core/launch/command/environment.h"
#include "core/launch/command/mpi_installation.h"
#include "core/launch/command/slurm.h"
#include "core/launch/options/text.h"

namespace hora::launch {
namespace {

constexpr char kShellVariable[] = "HORARUN_SSH";

bool is_this_host(const std::string& name) {
  const std::string own = internal::host_name();
  return name == "localhost" || name == "127.0.0.1" || name == "::1" || name == own ||
         name == own.substr(0, own.find('.')) || own == name.substr(0, name.find('.'));
}

/// Slurm's, or those of PBS's file, which names a host for each of its slots; none outside of an
/// allocation.
tl::expected<std::vector<HostSlots>, std::string> hosts_of_allocation() {
  const SlurmVariables variables = slurm_variables();
  std::vector<HostSlots> result;
  if (variables.job_nodelist.empty()) {
    const std::string path = variable_of_process("PBS_NODEFILE").value_or("");
    if (path.empty()) return result;
    const auto text = read_input_file(path);
    if (!text) return tl::unexpected("PBS_NODEFILE: the file " + path + " " + text.error());
    return parse_hostfile(*text, path);
  }
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
    if (hosts.empty()) hosts.push_back({.name = "localhost", .slots = 1, .counted = false});
    for (HostSlots& host : hosts) {
      host.slots = options.ranks_per_host.value_or(host.slots);
      host.counted = host.counted || options.ranks_per_host;
    }
  }
  return lay_out_ranks(hosts, options.np.value_or(total_slots(hosts)), options.oversubscribe);
}

std::vector<std::string> agent_command(const std::string& host, const LaunchOptions& options,
                                       const std::string& self) {
  if (is_this_host(host)) return {self, "--agent"};
  if (is_allocated(slurm_variables(), host) &&
      !find_program("srun", variable_of_process("PATH").value_or("")).empty()) {
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

}  // namespace

tl::expected<void, std::string> place_on_hosts(const LaunchOptions& options,
                                               const std::string& self, LauncherOptions& launcher) {
  const auto layout = lay_out(options);
  if (!layout) return tl::unexpected(layout.error());
  std::vector<JobHost>& hosts = launcher.plan.hosts;
  for (const HostRanks& host : *layout) hosts.push_back({host.name, host.ranks});
  const auto local = std::ranges::find_if(hosts, is_this_host, &JobHost::name);
  launcher.plan.launcher_host = static_cast<std::size_t>(local - hosts.begin());
  if (local == hosts.end()) hosts.push_back({"localhost", 0});
  for (JobHost& host : hosts) host.agent_command = agent_command(host.name, options, self);
  launcher.agents.resize(hosts.size());
  return {};
}

void place_on_nodes(NodesMet met, const std::string& self, LauncherOptions& launcher) {
  std::vector<JobHost>& hosts = launcher.plan.hosts;
  for (std::size_t node = 0; node < met.nodes.size(); ++node) {
    const std::string& name = met.nodes[node].host;
    const bool is_only = std::ranges::count(met.nodes, name, &Node::host) == 1;
    hosts.push_back({is_only ? name : name + "-" + std::to_string(node), met.nodes[node].ranks});
  }
  launcher.plan.launcher_host = 0;
  hosts.front().agent_command = {self, "--agent"};
  launcher.agents.emplace_back();
  for (JoinedNode& node : met.joined) {
    launcher.agents.push_back(
        {.connection = std::move(node.connection),
         .seals = SealPair{.send = std::move(node.send), .receive = std::move(node.receive)}});
  }
}

}  // namespace hora::launch
