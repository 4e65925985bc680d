/// Which variables of horarun's environment ranks on other hosts get. Pure.
///
/// Names alone decide; values travel over the agents, never on a command line.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "core/launch/command/command.h"

namespace hora::launch {

/// True of names that libraries for training read (HORA_*, NCCL_*, OMP_*, ...), of search paths,
/// and of MPI's own settings (OMPI_MCA_*); false of what belongs to one host or one process (HOME,
/// DISPLAY, SSH_*, SLURM_*, HORARUN_*, PMIX_*), and of everything else.
bool is_forwarded(std::string_view name) noexcept;

/// This process's own, as `NAME=value` entries, until something in it is set.
std::span<const char* const> environment_of_process() noexcept;

/// One of them; nothing where it is not set.
std::optional<std::string> variable_of_process(std::string_view name);

/// `NAME=value` entries of an environment. An entry without '=' or with a name that is none is left
/// out.
std::vector<Variable> variables_of(std::span<const char* const> environment);

/// Those of `environment` that are forwarded by themselves or named by the user (-x NAME), and
/// those that the user gives a value (-x NAME=value), in the order of their names, each once. The
/// error names an -x whose name is none, is horarun's own, or is not set.
tl::expected<std::vector<Variable>, std::string> forwarded_variables(
    const std::vector<Variable>& environment, const std::vector<std::string>& named);

}  // namespace hora::launch
