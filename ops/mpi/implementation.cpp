#include "ops/mpi/implementation.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include "ops/mpi/check.h"

namespace hora {
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

}  // namespace hora
