#include "core/launch/command/environment.h"

#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>

#include "core/launch/control/system.h"
#include "core/launch/text.h"

namespace hora::launch {
namespace {

constexpr std::string_view kPrefixes =
    "HORA_ NCCL_ UCX_ OMP_ GOMP_ KMP_ MKL_ OPENBLAS_ BLIS_ DNNL_ ONEDNN_ CUDA_ CUBLAS_ CUDNN_ "
    "TORCH_ PYTORCH_ ATEN_ FI_ GLOO_ MALLOC_ ASAN_ UBSAN_ TSAN_ LSAN_ OMPI_MCA_ PRTE_MCA_ "
    "MPIR_CVAR_";

constexpr std::string_view kNames =
    "PATH LD_LIBRARY_PATH PYTHONPATH VIRTUAL_ENV CONDA_PREFIX GLIBC_TUNABLES LANG LC_ALL LC_CTYPE "
    "TZ OPAL_PREFIX PRTE_PREFIX PMIX_PREFIX XLA_FLAGS OMPI_ALLOW_RUN_AS_ROOT "
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM PRTE_ALLOW_RUN_AS_ROOT";

/// mpirun sets these for its own processes; a launcher within another job has them, too. (HORARUN_*
/// begins with none of the prefixes above.)
constexpr std::string_view kNever = "OMPI_MCA_orte_ OMPI_MCA_ess_ OMPI_MCA_initial_wdir";

bool begins_with_any(std::string_view name, std::string_view prefixes) {
  return std::ranges::any_of(split_at_spaces(prefixes),
                             [&](std::string_view prefix) { return name.starts_with(prefix); });
}

}  // namespace

bool is_forwarded(std::string_view name) {
  return !begins_with_any(name, kNever) &&
         (lists(kNames, name) || begins_with_any(name, kPrefixes));
}

std::span<const char* const> environment_of_process() noexcept {
  std::size_t count = 0;
  while (environ[count] != nullptr) ++count;
  return {environ, count};
}

std::optional<std::string> variable_of_process(std::string_view name) {
  const char* const value = std::getenv(std::string(name).c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::vector<Variable> variables_of(std::span<const char* const> environment) {
  std::vector<Variable> variables;
  for (const char* const entry : environment) {
    const std::string_view text(entry == nullptr ? "" : entry);
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || !is_variable_name(text.substr(0, equals))) continue;
    variables.push_back(
        {std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))});
  }
  return variables;
}

std::vector<Variable> forwarded_variables(const std::vector<Variable>& environment,
                                          const std::vector<std::string>& named) {
  std::map<std::string, std::string> chosen;
  for (const Variable& variable : environment) {
    if (is_forwarded(variable.name) || std::ranges::find(named, variable.name) != named.end()) {
      chosen.try_emplace(variable.name, variable.value);
    }
  }
  std::vector<Variable> variables;
  for (const auto& [name, value] : chosen) variables.push_back({name, value});
  return variables;
}

std::vector<Variable> network_variables(const std::vector<std::string>& interfaces, bool has_rdma) {
  if (interfaces.empty()) return {};
  const std::string names = fmt::format("{}", fmt::join(interfaces, ","));
  std::vector<Variable> variables = {{"NCCL_SOCKET_IFNAME", "=" + names},
                                     {"GLOO_SOCKET_IFNAME", interfaces.front()},
                                     {"FI_TCP_IFACE", interfaces.front()}};
  if (!has_rdma) variables.push_back({"UCX_NET_DEVICES", names});
  return variables;
}

tl::expected<std::vector<int>, std::string> expand_counts(std::string_view text) {
  std::vector<int> counts;
  for (const std::string_view part : split(text, ',')) {
    const std::string item(part);
    int count = 0, repeated = 1, end = 0;
    std::sscanf(item.c_str(), "%9d%n(x%9d)%n", &count, &end, &repeated, &end);
    if (count < 1 || repeated < 1 || static_cast<std::size_t>(end) != item.size() ||
        static_cast<std::size_t>(repeated) + counts.size() > kMostRanks) {
      return tl::unexpected(
          fmt::format("Slurm's list {} is not of the form 2(x3),1", in_quotes(text)));
    }
    counts.insert(counts.end(), static_cast<std::size_t>(repeated), count);
  }
  return counts;
}

tl::expected<std::vector<HostSlots>, std::string> slurm_hosts(const EnvironmentLookup& lookup) {
  constexpr std::chrono::seconds kLimit{10};
  const std::string list = lookup("SLURM_JOB_NODELIST").value_or("");
  if (list.empty()) return {};
  const auto fail = [&](const std::string& why) {
    return tl::unexpected(fmt::format("SLURM_JOB_NODELIST={}: {}", in_quotes(list), why));
  };
  const std::string scontrol = find_program("scontrol", lookup("PATH").value_or(""));
  if (scontrol.empty()) {
    return fail("scontrol, which says its hosts, is not on PATH; name the hosts by -H");
  }
  const auto names = captured_output({scontrol, "show", "hostnames", list}, kLimit);
  if (!names) return fail(names.error());
  std::vector<HostSlots> hosts;
  for (const std::string_view name : split_at_spaces(names->text)) {
    hosts.push_back({.name = std::string(name)});
    if (names->status != 0 || !is_host_name(name))
      return fail("scontrol " + in_quotes(names->text));
  }
  const bool by_tasks =
      lookup("SLURM_TASKS_PER_NODE") && (lookup("SLURM_NTASKS") || lookup("SLURM_NTASKS_PER_NODE"));
  const char* const source = by_tasks ? "SLURM_TASKS_PER_NODE" : "SLURM_JOB_CPUS_PER_NODE";
  const auto slots = expand_counts(lookup(source).value_or(""));
  const auto cores = expand_counts(lookup("SLURM_CPUS_PER_TASK").value_or("1"));
  if (!slots) return tl::unexpected(fmt::format("{}: {}", source, slots.error()));
  if (!cores) return tl::unexpected("SLURM_CPUS_PER_TASK: " + cores.error());
  if (slots->size() != hosts.size()) {
    return fail(fmt::format("it names {} hosts, but {} has numbers for {} hosts", hosts.size(),
                            source, slots->size()));
  }
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    hosts[i].slots = std::max(1, (*slots)[i] / (by_tasks ? 1 : cores->front()));
  }
  return hosts;
}

std::vector<std::string> srun_prefix(const std::string& srun, const std::string& host) {
  std::vector<std::string> words{srun, "--nodelist=" + host};
  for (const std::string_view word : split_at_spaces(
           "--nodes=1 --ntasks=1 --overlap --cpu-bind=none --mpi=none --export=ALL --unbuffered "
           "--kill-on-bad-exit=0 --input=0 --quiet")) {
    words.emplace_back(word);
  }
  return words;
}

namespace {

struct VariableNames {
  std::string_view launcher, rank, size, local_rank, local_size;
};

constexpr std::array<VariableNames, 3> kLaunchers = {{
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""},
}};

int number_of(const EnvironmentLookup& lookup, const VariableNames& names, std::string_view name) {
  const std::string text = lookup(name).value_or("");
  const auto number = parse_integer(text, 0, std::numeric_limits<int>::max());
  if (number) return *number;
  throw Refused{fmt::format("{} has set {}, but {} is {}, which is no number of a rank",
                            names.launcher, names.rank, name, in_quotes(text))};
}

/// Slurm tells how many tasks every node of the step has, and which of them this is.
int local_size_of_slurm(const EnvironmentLookup& lookup, const VariableNames& names) {
  constexpr std::string_view kTasks = "SLURM_STEP_TASKS_PER_NODE";
  const int node = number_of(lookup, names, "SLURM_NODEID");
  const auto tasks = expand_counts(lookup(kTasks).value_or(""));
  if (!tasks) throw Refused{fmt::format("{}: {}", kTasks, tasks.error())};
  if (static_cast<std::size_t>(node) < tasks->size()) {
    return (*tasks)[static_cast<std::size_t>(node)];
  }
  throw Refused{fmt::format("{} has no node {}", kTasks, node)};
}

}  // namespace

tl::expected<RankPlace, std::string> rank_of_environment(const EnvironmentLookup& lookup) {
  return expected_of([&] {
    for (const VariableNames& names : kLaunchers) {
      if (!lookup(names.rank)) continue;
      const RankPlace place{.rank = number_of(lookup, names, names.rank),
                            .size = number_of(lookup, names, names.size),
                            .local_rank = number_of(lookup, names, names.local_rank),
                            .local_size = names.local_size.empty()
                                              ? local_size_of_slurm(lookup, names)
                                              : number_of(lookup, names, names.local_size)};
      if (place.rank < place.size && place.local_rank < place.local_size &&
          place.local_size <= place.size) {
        return place;
      }
      throw Refused{fmt::format("{} says rank {} of {}, on its host {} of {}", names.launcher,
                                place.rank, place.size, place.local_rank, place.local_size)};
    }
    throw Refused{
        "none of OMPI_COMM_WORLD_RANK, PMI_RANK and SLURM_PROCID is set: no mpirun has started "
        "this process"};
  });
}

}  // namespace hora::launch
