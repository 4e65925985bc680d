#include "core/launch/command/program.h"

#include <elf.h>
#include <fcntl.h>
#include <hora/printable.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>
#include <system_error>

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

class File {
 public:
  explicit File(const std::string& path)
      : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }

  bool is_open() const { return descriptor_ >= 0; }
  bool read(std::uint64_t offset, std::span<std::byte> target) const {
    while (!target.empty()) {
      if (offset > static_cast<std::uint64_t>(INT64_MAX)) return false;
      const ssize_t count =
          ::pread(descriptor_, target.data(), target.size(), static_cast<off_t>(offset));
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return false;
      offset += static_cast<std::uint64_t>(count);
      target = target.subspan(static_cast<std::size_t>(count));
    }
    return true;
  }

 private:
  int descriptor_;
};

/// Why the file at `path` cannot be executed by this user; empty where it can.
std::string wrong_with_file(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::generic_category().message(errno);
  if (S_ISDIR(status.st_mode)) return "it is a folder";
  if (!S_ISREG(status.st_mode)) return "it is no regular file";
  if (::access(path.c_str(), X_OK) != 0) return "it is not executable for this user (chmod +x)";
  return {};
}

bool any_begins(const std::vector<std::string>& names, std::string_view prefix) {
  return std::ranges::any_of(names,
                             [&](const std::string& name) { return name.starts_with(prefix); });
}

}  // namespace

tl::expected<ProgramFile, std::string> inspect_program(const std::string& program,
                                                       std::string_view search_path) {
  const auto failure = [&](const std::string& why) {
    return tl::unexpected("the program " + in_quotes(program) + " cannot be run: " + why);
  };
  ProgramFile file{program, {}};
  if (program.find('/') == std::string::npos) {
    file.path = find_program(program, search_path);
    if (file.path.empty()) {
      return failure("it is not on PATH (for one in this folder write " +
                     in_quotes("./" + program) + ")");
    }
  }
  if (const std::string why = wrong_with_file(file.path); !why.empty()) return failure(why);
  const File opened(file.path);
  if (!opened.is_open()) return file;  // executable, but not readable: nothing to look at
  std::array<char, 2> begin{};
  if (!opened.read(0, std::as_writable_bytes(std::span(begin)))) return failure("it is empty");
  if (begin[0] == '#' && begin[1] == '!') return file;
  auto libraries = read_elf_libraries([&](std::uint64_t offset, std::span<std::byte> target) {
    return opened.read(offset, target);
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

LinkedLibraries linked_libraries(const std::vector<std::string>& needed) {
  return {any_begins(needed, "libhora"),
          any_begins(needed, "libtorch") || any_begins(needed, "libc10"),
          any_begins(needed, "libcudart") || any_begins(needed, "libcuda.so"),
          any_begins(needed, "libnccl")};
}

}  // namespace hora::launch
