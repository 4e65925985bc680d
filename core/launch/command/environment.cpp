#include "core/launch/command/environment.h"

#include <hora/printable.h>
#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <map>

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

namespace {

using Names = std::vector<std::string>;

/// read()'s value, or what it says of the list.
template <class Read>
auto read_list(std::string_view list, Read&& read) -> tl::expected<decltype(read()), std::string> {
  try {
    return read();
  } catch (const Refused& refused) {
    return tl::unexpected(fmt::format("Slurm's list {} {}", in_quotes(list), refused.why));
  }
}

void check_number(std::size_t hosts) {
  if (hosts <= kMostSlurmHosts) return;
  throw Refused{fmt::format("names more than {} hosts", kMostSlurmHosts)};
}

/// The decimal number at the front of `text`, removed from it; -1 where there is none below 10^9.
long take_number(std::string_view& text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  long number = -1;
  if (digits > 0 && digits < 10) std::from_chars(text.data(), text.data() + digits, number);
  text.remove_prefix(digits);
  return number;
}

/// `1-3,07` in each of its numbers.
Names expand_ranges(std::string_view ranges) {
  Names numbers;
  for (const std::string_view range : split(ranges, ',')) {
    std::string_view rest = range;
    const long first = take_number(rest);
    const std::size_t width = range.size() - rest.size();
    long last = first;
    if (rest.starts_with('-')) {
      rest.remove_prefix(1);
      last = take_number(rest);
    }
    if (first < 0 || last < first) throw Refused{"holds a range that is none"};
    if (!rest.empty()) throw Refused{"holds something other than numbers in brackets"};
    check_number(numbers.size() + static_cast<std::size_t>(last - first) + 1);
    for (long number = first; number <= last; ++number) {
      numbers.push_back(fmt::format("{:0{}}", number, width));
    }
  }
  return numbers;
}

/// One item of the list, brackets included.
Names expand_item(std::string_view item) {
  constexpr std::size_t kMostBrackets = 8;
  Names names = {""};
  for (std::size_t brackets = 0; !item.empty(); ++brackets) {
    if (brackets == kMostBrackets) {
      throw Refused{fmt::format("has more than {} brackets in a name", kMostBrackets)};
    }
    const std::size_t open = std::min(item.find('['), item.size());
    for (std::string& name : names) name += item.substr(0, open);
    item.remove_prefix(open);
    if (item.empty()) break;
    const std::size_t close = item.find(']');
    if (close == item.npos) throw Refused{"lacks a \"]\""};
    const Names numbers = expand_ranges(item.substr(1, close - 1));
    item.remove_prefix(close + 1);
    check_number(names.size() * numbers.size());
    Names product;
    for (const std::string& name : names) {
      for (const std::string& number : numbers) product.push_back(name + number);
    }
    names = std::move(product);
  }
  return names;
}

/// The length of the first item: up to a comma that stands in no brackets.
std::size_t item_length(std::string_view list) {
  bool within = false;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '[') within = true;
    if (list[i] == ']') within = false;
    if (list[i] == ',' && !within) return i;
  }
  return list.size();
}

}  // namespace

tl::expected<Names, std::string> expand_host_list(std::string_view text) {
  return read_list(text, [text] {
    Names hosts;
    for (std::string_view rest = text;;) {
      const std::size_t length = item_length(rest);
      Names names = expand_item(rest.substr(0, length));
      check_number(hosts.size() + names.size());
      for (std::string& name : names) {
        if (!is_host_name(name)) throw Refused{"holds the name " + in_quotes(name)};
        hosts.push_back(std::move(name));
      }
      if (length == rest.size()) return hosts;
      rest.remove_prefix(length + 1);
    }
  });
}

tl::expected<std::vector<int>, std::string> expand_counts(std::string_view text) {
  return read_list(text, [text] {
    std::vector<int> counts;
    for (std::string_view item : split(text, ',')) {
      const long count = take_number(item);
      long repeated = 1;
      if (item.starts_with("(x") && item.ends_with(')')) {
        item = item.substr(2, item.size() - 3);
        repeated = take_number(item);
      }
      if (count < 1 || repeated < 1 || !item.empty()) {
        throw Refused{"is not of the form 2(x3),1"};
      }
      check_number(counts.size() + static_cast<std::size_t>(repeated));
      counts.insert(counts.end(), static_cast<std::size_t>(repeated), static_cast<int>(count));
    }
    return counts;
  });
}

SlurmVariables slurm_variables() {
  return {variable_of_process("SLURM_JOB_NODELIST").value_or(""),
          variable_of_process("SLURM_TASKS_PER_NODE"),
          variable_of_process("SLURM_JOB_CPUS_PER_NODE"),
          variable_of_process("SLURM_CPUS_PER_TASK"),
          variable_of_process("SLURM_NTASKS") || variable_of_process("SLURM_NTASKS_PER_NODE")};
}

tl::expected<std::vector<HostSlots>, std::string> slurm_hosts(const SlurmVariables& variables) {
  const auto names = expand_host_list(variables.job_nodelist);
  if (!names) return tl::unexpected("SLURM_JOB_NODELIST: " + names.error());
  const bool by_tasks = variables.ntasks_requested && variables.ntasks_per_node;
  const char* const source = by_tasks ? "SLURM_TASKS_PER_NODE" : "SLURM_JOB_CPUS_PER_NODE";
  const auto& text = by_tasks ? variables.ntasks_per_node : variables.cpus_per_node;
  if (!text) return tl::unexpected(fmt::format("{} is not set in this Slurm allocation", source));
  auto slots = expand_counts(*text);
  if (!slots) return tl::unexpected(fmt::format("{}: {}", source, slots.error()));
  if (slots->size() != names->size()) {
    return tl::unexpected(fmt::format("{}={} has numbers for {} hosts, SLURM_JOB_NODELIST names {}",
                                      source, in_quotes(*text), slots->size(), names->size()));
  }
  int of_a_task = 1;
  if (!by_tasks && variables.cpus_per_task) {
    const auto cores = expand_counts(*variables.cpus_per_task);
    if (!cores) return tl::unexpected("SLURM_CPUS_PER_TASK: " + cores.error());
    of_a_task = cores->front();
  }
  std::vector<HostSlots> hosts;
  for (std::size_t i = 0; i < names->size(); ++i) {
    hosts.push_back({.name = (*names)[i], .slots = std::max(1, (*slots)[i] / of_a_task)});
  }
  return hosts;
}

bool is_allocated(const SlurmVariables& variables, std::string_view host) {
  if (variables.job_nodelist.empty()) return false;
  const auto names = expand_host_list(variables.job_nodelist);
  return names && std::ranges::find(*names, host) != names->end();
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
  const std::optional<std::string> text = lookup(name);
  if (!text) {
    throw Refused{fmt::format("{} has set {} but not {}", names.launcher, names.rank, name)};
  }
  const auto number = parse_integer(*text, 0, std::numeric_limits<int>::max());
  if (number) return *number;
  throw Refused{fmt::format("{}={}, set by {}, is no number of a rank", name, in_quotes(*text),
                            names.launcher)};
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
