#include "core/launch/command/program.h"

#include <elf.h>
#include <fcntl.h>
#include <hora/printable.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "core/launch/control/unique_fd.h"

namespace hora::launch {
namespace {

#if defined(__x86_64__)
constexpr std::uint16_t kThisMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr std::uint16_t kThisMachine = EM_AARCH64;
#elif defined(__powerpc64__)
constexpr std::uint16_t kThisMachine = EM_PPC64;
#elif defined(__riscv)
constexpr std::uint16_t kThisMachine = EM_RISCV;
#else
constexpr std::uint16_t kThisMachine = EM_NONE;  // any
#endif

std::string machine_name(std::uint16_t machine) {
  switch (machine) {
    case EM_X86_64:
      return "x86-64";
    case EM_AARCH64:
      return "AArch64";
    case EM_PPC64:
      return "POWER";
    case EM_RISCV:
      return "RISC-V";
    default:
      return "machine " + std::to_string(machine) + " of ELF's list";
  }
}

bool read_at(const UniqueFd& file, std::uint64_t offset, std::span<std::byte> target) {
  while (!target.empty()) {
    if (offset > static_cast<std::uint64_t>(INT64_MAX)) return false;
    const ssize_t count =
        ::pread(file.get(), target.data(), target.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    offset += static_cast<std::uint64_t>(count);
    target = target.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

/// Why the file at `path` cannot be executed by this user; empty where it can.
std::string wrong_with_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::generic_category().message(errno);
  if (S_ISDIR(status.st_mode)) return "it is a folder";
  if (!S_ISREG(status.st_mode)) return "it is no regular file";
  if (::access(path.c_str(), X_OK) != 0) return "it is not executable for this user (chmod +x)";
  return {};
}

}  // namespace

std::string program_from(const std::string& folder, const std::string& program) {
  if (program.find('/') == std::string::npos || program.starts_with('/')) return program;
  return (std::filesystem::path(folder) / program).lexically_normal();
}

tl::expected<ProgramFile, std::string> inspect_program(const std::string& program,
                                                       std::string_view search_path) {
  const auto failure = [&](const std::string& why) {
    return tl::unexpected("the program " + in_quotes(program) + " cannot be run: " + why);
  };
  ProgramFile file{program, {}};
  if (program.find('/') == std::string::npos) {
    file.path = find_program(program, search_path);
    if (file.path.empty()) {
      return failure("it is in none of the folders of PATH (" + printable(search_path) +
                     "); for one in this folder write " + in_quotes("./" + program));
    }
  }
  if (const std::string why = wrong_with_file(file.path); !why.empty()) return failure(why);
  const UniqueFd opened(::open(file.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!opened) return file;  // executable, but not readable: nothing to look at
  std::array<char, 2> begin{};
  if (!read_at(opened, 0, std::as_writable_bytes(std::span(begin)))) {
    return failure("it is empty");
  }
  if (begin[0] == '#' && begin[1] == '!') return file;
  auto libraries = read_elf_libraries([&](std::uint64_t offset, std::span<std::byte> target) {
    return read_at(opened, offset, target);
  });
  if (!libraries) {
    return failure(libraries.error() + "; a script begins with #! and its interpreter");
  }
  if (kThisMachine != EM_NONE && libraries->machine != kThisMachine) {
    return failure("it is for " + machine_name(libraries->machine) + ", this host is " +
                   machine_name(kThisMachine));
  }
  file.libraries = std::move(*libraries);
  return file;
}

LinkedMpi linked_mpi(const std::vector<std::string>& needed) {
  for (const std::string& name : needed) {
    if (name == "libmpi.so.12" || name.starts_with("libmpich.so")) return LinkedMpi::mpich;
    if (name == "libmpi.so.20" || name == "libmpi.so.40") return LinkedMpi::open_mpi;
  }
  return LinkedMpi::none;
}

std::string wrong_with_linked_mpi(const std::string& program, LinkedMpi linked,
                                  const MpiInstallation& mpi) {
  const bool is_mpich = mpi.flavour == MpiFlavour::hydra;
  if (linked == LinkedMpi::none || (linked == LinkedMpi::mpich) == is_mpich) return {};
  const std::string other = linked == LinkedMpi::mpich ? "MPICH" : "Open MPI";
  return "the program " + in_quotes(program) + " is linked with " + other + ", but " +
         in_quotes(mpi.mpirun) + " is " + std::string(name_of(mpi.flavour)) + " " + mpi.version +
         ", under which each of its ranks would believe that it is alone; name " + other +
         "'s mpirun with --mpirun (Debian: " +
         (linked == LinkedMpi::mpich ? "mpirun.mpich" : "mpirun.openmpi") +
         "), or build the program with " + std::string(name_of(mpi.flavour));
}

}  // namespace hora::launch
