#include "core/launch/command/environment.h"

#include <hora/printable.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <map>

#include "core/launch/command/command.h"
#include "core/launch/command/slurm.h"

namespace hora::launch {
namespace {

constexpr std::array<std::string_view, 27> kPrefixes = {
    "HORA_",     "NCCL_",    "UCX_",  "OMP_",      "GOMP_",     "KMP_",      "MKL_",
    "OPENBLAS_", "BLIS_",    "DNNL_", "ONEDNN_",   "CUDA_",     "CUBLAS_",   "CUDNN_",
    "TORCH_",    "PYTORCH_", "ATEN_", "FI_",       "GLOO_",     "MALLOC_",   "ASAN_",
    "UBSAN_",    "TSAN_",    "LSAN_", "OMPI_MCA_", "PRTE_MCA_", "MPIR_CVAR_"};

constexpr std::array<std::string_view, 17> kNames = {"PATH",
                                                     "LD_LIBRARY_PATH",
                                                     "PYTHONPATH",
                                                     "VIRTUAL_ENV",
                                                     "CONDA_PREFIX",
                                                     "GLIBC_TUNABLES",
                                                     "LANG",
                                                     "LC_ALL",
                                                     "LC_CTYPE",
                                                     "TZ",
                                                     "OPAL_PREFIX",
                                                     "PRTE_PREFIX",
                                                     "PMIX_PREFIX",
                                                     "XLA_FLAGS",
                                                     "OMPI_ALLOW_RUN_AS_ROOT",
                                                     "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                                                     "PRTE_ALLOW_RUN_AS_ROOT"};

/// What mpirun tells its own processes; a launcher within another job has them, too. (HORARUN_*
/// begins with none of the prefixes above.)
constexpr std::array<std::string_view, 3> kNever = {"OMPI_MCA_orte_", "OMPI_MCA_ess_",
                                                    "OMPI_MCA_initial_wdir"};

}  // namespace

bool is_forwarded(std::string_view name) noexcept {
  const auto begins = [&](std::string_view prefix) { return name.starts_with(prefix); };
  if (std::ranges::any_of(kNever, begins)) return false;
  return std::ranges::find(kNames, name) != kNames.end() || std::ranges::any_of(kPrefixes, begins);
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
  std::string names;
  for (const std::string& name : interfaces) names += (names.empty() ? "" : ",") + name;
  std::vector<Variable> variables = {{"NCCL_SOCKET_IFNAME", "=" + names},
                                     {"GLOO_SOCKET_IFNAME", interfaces.front()},
                                     {"FI_TCP_IFACE", interfaces.front()}};
  if (!has_rdma) variables.push_back({"UCX_NET_DEVICES", names});
  return variables;
}

namespace {

struct Names {
  std::string_view launcher, rank, size, local_rank, local_size;
};

constexpr std::array<Names, 3> kLaunchers = {{
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""},
}};

using Number = tl::expected<int, std::string>;

Number number_of(const EnvironmentLookup& lookup, const Names& names, std::string_view name) {
  const std::optional<std::string> text = lookup(name);
  if (!text) {
    return tl::unexpected(std::string(names.launcher) + " has set " + std::string(names.rank) +
                          " but not " + std::string(name));
  }
  int number = -1;
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, number);
  if (error == std::errc() && stop == end && number >= 0) return number;
  return tl::unexpected(std::string(name) + "=" + in_quotes(*text) + ", set by " +
                        std::string(names.launcher) + ", is no number of a rank");
}

/// Slurm tells how many tasks every node of the step has, and which of them this is.
Number local_size_of_slurm(const EnvironmentLookup& lookup, const Names& names) {
  const Number node = number_of(lookup, names, "SLURM_NODEID");
  if (!node) return node;
  const auto tasks = expand_counts(lookup("SLURM_STEP_TASKS_PER_NODE").value_or(""));
  if (!tasks) return tl::unexpected("SLURM_STEP_TASKS_PER_NODE: " + tasks.error());
  if (static_cast<std::size_t>(*node) < tasks->size()) {
    return (*tasks)[static_cast<std::size_t>(*node)];
  }
  return tl::unexpected("SLURM_STEP_TASKS_PER_NODE has no node " + std::to_string(*node));
}

}  // namespace

tl::expected<RankPlace, std::string> rank_of_environment(const EnvironmentLookup& lookup) {
  for (const Names& names : kLaunchers) {
    if (!lookup(names.rank)) continue;
    const Number rank = number_of(lookup, names, names.rank);
    const Number size = number_of(lookup, names, names.size);
    const Number local_rank = number_of(lookup, names, names.local_rank);
    const Number local_size = names.local_size.empty() ? local_size_of_slurm(lookup, names)
                                                       : number_of(lookup, names, names.local_size);
    for (const Number* number : {&rank, &size, &local_rank, &local_size}) {
      if (!*number) return tl::unexpected(number->error());
    }
    if (*rank >= *size || *local_rank >= *local_size || *local_size > *size) {
      return tl::unexpected(std::string(names.launcher) + " says rank " + std::to_string(*rank) +
                            " of " + std::to_string(*size) + ", on its host " +
                            std::to_string(*local_rank) + " of " + std::to_string(*local_size));
    }
    return RankPlace{*rank, *size, *local_rank, *local_size};
  }
  return tl::unexpected(
      std::string("none of OMPI_COMM_WORLD_RANK, PMI_RANK and SLURM_PROCID is set: no mpirun has "
                  "started this process"));
}

}  // namespace hora::launch
