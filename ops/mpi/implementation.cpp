#include "ops/mpi/implementation.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>

#include "ops/mpi/check.h"

namespace hora::internal {
namespace {

enum class Family { unknown, open_mpi, mpich };

Family family_of(std::string_view text) {
  const auto has = [&](std::string_view word) { return text.find(word) != text.npos; };
  if (has("Open MPI")) return Family::open_mpi;
  if (has("MPICH") || has("Intel(R) MPI") || has("MVAPICH")) return Family::mpich;
  return Family::unknown;
}

/// The first number of the text; 0 where there is none.
int major_version_of(std::string_view text) {
  const auto digit = std::ranges::find_if(
      text, [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; });
  return std::atoi(std::string(digit, text.end()).c_str());
}

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

/// How srun starts ranks of this library: by the PMI that it speaks.
std::string advice_for_srun(std::string_view library) {
  switch (family_of(library)) {
    case Family::open_mpi:
      return ", or by srun --mpi=pmix";
    case Family::mpich:
      return ", or by srun --mpi=pmi2";
    case Family::unknown:
      return ", or by srun --mpi=TYPE with a TYPE that the library speaks (srun --mpi=list)";
  }
  return {};
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

std::string compiled_mpi() {
#if defined(OMPI_MAJOR_VERSION)
  return "Open MPI " + std::to_string(OMPI_MAJOR_VERSION) + "." +
         std::to_string(OMPI_MINOR_VERSION) + "." + std::to_string(OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
  return "MPICH " MPICH_VERSION;
#else
  return {};
#endif
}

std::string running_mpi() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  mpi_check(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  std::string line(text.data(), static_cast<std::size_t>(length));
  line.resize(std::min(line.find('\n'), line.size()));
  line.resize(std::min(line.find(','), line.size()));
  // MPICH aligns its number by blanks.
  line.erase(
      std::unique(line.begin(), line.end(),
                  [](char a, char b) { return std::isspace(a) != 0 && std::isspace(b) != 0; }),
      line.end());
  std::ranges::replace(line, '\t', ' ');
  return line;
}

bool is_open_mpi_from(int major_version, std::string_view running) {
  return family_of(running) == Family::open_mpi && major_version_of(running) >= major_version;
}

std::optional<std::string> library_mismatch(std::string_view compiled, std::string_view running) {
  const Family wanted = family_of(compiled);
  const Family found = family_of(running);
  const bool known = wanted != Family::unknown && found != Family::unknown;
  const bool is_older = wanted == Family::open_mpi && found == Family::open_mpi &&
                        major_version_of(running) < major_version_of(compiled);
  if (!known || (wanted == found && !is_older)) return std::nullopt;
  return "hora was compiled for " + std::string(compiled) + ", but this process has loaded " +
         std::string(running) +
         ": their types differ behind equal names. Link the program with the MPI that hora was "
         "built with, and let LD_LIBRARY_PATH not lead to another";
}

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
           (is_slurm ? advice_for_srun(library) : "");
  }
  return std::nullopt;
}

}  // namespace hora::internal
