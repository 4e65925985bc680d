#include "ops/mpi/launcher.h"

#include <charconv>

#include "ops/mpi/implementation.h"

namespace hora {
namespace {

struct Launcher {
  const char* variable;
  std::string_view name;
};

// The innermost launcher's variable counts: mpirun inside a Slurm step sets both. Slurm's number is
// the step's (SLURM_NTASKS is the job's, and set in a batch script that srun has not started).
constexpr Launcher kLaunchers[] = {
    {"OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun"},
    {"PMI_SIZE", "a PMI launcher (MPICH's or Intel's mpiexec)"},
    {"SLURM_STEP_NUM_TASKS", "Slurm's srun"},
};

/// 0 where it is no number.
long number_of(std::string_view digits) {
  long number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && end == digits.data() + digits.size() ? number : 0;
}

/// Since version 5 mpirun says which one it is; before, its runtime was ORTE.
std::string version_of_mpirun(const EnvironmentLookup& lookup) {
  if (const char* version = lookup("OMPI_VERSION")) return std::string(" ") + version;
  return lookup("OMPI_MCA_orte_launch") ? " of version 4 or earlier" : "";
}

std::optional<std::string> older_mpirun(std::string_view library, const EnvironmentLookup& lookup) {
  if (!is_open_mpi_from(5, library) || !lookup("OMPI_MCA_orte_launch") || lookup("OMPI_VERSION")) {
    return std::nullopt;
  }
  return "this program has loaded " + std::string(library) +
         ", but Open MPI's mpirun of version 4 or earlier started it: use the mpirun that belongs "
         "to the library";
}

}  // namespace

std::optional<std::string> launcher_mismatch(int world_size, std::string_view library,
                                             const EnvironmentLookup& lookup) {
  if (auto older = older_mpirun(library, lookup)) return older;
  if (world_size != 1) return std::nullopt;
  for (const Launcher& launcher : kLaunchers) {
    const char* value = lookup(launcher.variable);
    if (value == nullptr) continue;
    const long processes = number_of(value);
    if (processes <= 1) return std::nullopt;
    const bool is_open_mpi = &launcher == kLaunchers;
    const bool is_slurm = launcher.name.starts_with("Slurm");
    return std::string(launcher.name) + (is_open_mpi ? version_of_mpirun(lookup) : "") +
           " started " + std::to_string(processes) + " processes (" + launcher.variable + "=" +
           value + "), but MPI_COMM_WORLD has one: this program is linked with " +
           std::string(library) +
           ", to which the launcher does not belong. Start it with the mpirun of its own MPI "
           "library" +
           (is_slurm ? ", or srun --mpi=pmix" : "");
  }
  return std::nullopt;
}

}  // namespace hora
