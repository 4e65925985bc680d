#include "core/launch/command/forwarded.h"

#include <hora/printable.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>

#include "core/launch/command/variable_name.h"

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

tl::expected<std::vector<Variable>, std::string> forwarded_variables(
    const std::vector<Variable>& environment, const std::vector<std::string>& named) {
  std::map<std::string, std::string> chosen;
  for (const Variable& variable : environment) {
    if (is_variable_name(variable.name) && is_forwarded(variable.name)) {
      chosen.try_emplace(variable.name, variable.value);
    }
  }
  for (const std::string& option : named) {
    const std::size_t equals = option.find('=');
    const std::string name = option.substr(0, equals);
    if (!is_variable_name(name)) {
      return tl::unexpected(
          "-x " + in_quotes(option) +
          ": the name of a variable is made of letters, digits and '_'; give one -x "
          "for each");
    }
    if (name.starts_with("HORARUN_")) {
      return tl::unexpected("-x " + name + ": HORARUN_* is horarun's own, which ranks get from it");
    }
    if (equals != std::string::npos) {
      chosen[name] = option.substr(equals + 1);
      continue;
    }
    const auto found = std::ranges::find(environment, name, &Variable::name);
    if (found == environment.end()) {
      return tl::unexpected("-x " + name + ": this variable is not set; set it, or leave -x " +
                            name + " out");
    }
    chosen[name] = found->value;
  }
  std::vector<Variable> variables;
  for (const auto& [name, value] : chosen) variables.push_back({name, value});
  return variables;
}

}  // namespace hora::launch
