#include "core/launch/command/program.h"

#include <elf.h>
#include <fcntl.h>
#include <hora/printable.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "core/launch/control/event_loop.h"

namespace hora::launch {
namespace {

static_assert(std::endian::native == std::endian::little, "fields are read as they lie");

template <typename T>
std::optional<T> read_as(const ReadAt& read, std::uint64_t offset) {
  T value;
  if (!read(offset, std::as_writable_bytes(std::span(&value, 1)))) return std::nullopt;
  return value;
}

tl::unexpected<std::string> wrong(const char* what) {
  return tl::unexpected(std::string(what));
}

/// a + b, where that is a number.
std::optional<std::uint64_t> sum(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

/// The zero-terminated text at `offset`, read in small steps so that it may stand at the file's
/// end.
std::optional<std::string> text_at(const ReadAt& read, std::uint64_t offset) {
  std::string text;
  while (text.size() < kLongestElfText) {
    const auto at = sum(offset, text.size());
    const auto c = at ? read_as<char>(read, *at) : std::nullopt;
    if (!c) return std::nullopt;
    if (*c == '\0') return text;
    text += *c;
  }
  return std::nullopt;
}

/// Where in the file the byte lies that is loaded to `address`.
std::optional<std::uint64_t> file_offset(const std::vector<Elf64_Phdr>& headers,
                                         std::uint64_t address) {
  for (const Elf64_Phdr& header : headers) {
    if (header.p_type != PT_LOAD || address < header.p_vaddr) continue;
    const std::uint64_t within = address - header.p_vaddr;
    if (within < header.p_filesz) return sum(header.p_offset, within);
  }
  return std::nullopt;
}

struct DynamicEntries {
  std::uint64_t strings = 0;  ///< address of the string table; 0: none
  std::uint64_t strings_size = 0;
  std::vector<std::uint64_t> needed;
  std::optional<std::uint64_t> run_path, r_path;
};

std::optional<DynamicEntries> read_dynamic(const ReadAt& read, const Elf64_Phdr& header) {
  DynamicEntries entries;
  const std::uint64_t count =
      std::min<std::uint64_t>(header.p_filesz / sizeof(Elf64_Dyn), kMostDynamicEntries);
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto at = sum(header.p_offset, i * sizeof(Elf64_Dyn));
    const auto entry = at ? read_as<Elf64_Dyn>(read, *at) : std::nullopt;
    if (!entry) return std::nullopt;
    switch (entry->d_tag) {
      case DT_NULL:
        return entries;
      case DT_NEEDED:
        entries.needed.push_back(entry->d_un.d_val);
        break;
      case DT_STRTAB:
        entries.strings = entry->d_un.d_ptr;
        break;
      case DT_STRSZ:
        entries.strings_size = entry->d_un.d_val;
        break;
      case DT_RUNPATH:
        entries.run_path = entry->d_un.d_val;
        break;
      case DT_RPATH:
        entries.r_path = entry->d_un.d_val;
        break;
      default:
        break;
    }
  }
  return entries;
}

}  // namespace

tl::expected<ElfLibraries, std::string> read_elf_libraries(const ReadAt& read) {
  const auto header = read_as<Elf64_Ehdr>(read, 0);
  if (!header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) {
    return wrong("it is no ELF file");
  }
  if (header->e_ident[EI_CLASS] != ELFCLASS64) return wrong("it is a program of 32 bits");
  if (header->e_ident[EI_DATA] != ELFDATA2LSB) return wrong("it is a big-endian program");
  if (header->e_type != ET_EXEC && header->e_type != ET_DYN) {
    return wrong("it is an ELF file, but no program (an object file or a memory dump)");
  }
  if (header->e_phentsize != sizeof(Elf64_Phdr) || header->e_phnum > kMostElfHeaders) {
    return wrong("its program headers are damaged");
  }
  ElfLibraries libraries;
  libraries.machine = header->e_machine;
  std::vector<Elf64_Phdr> headers;
  for (std::uint64_t i = 0; i < header->e_phnum; ++i) {
    const auto at = sum(header->e_phoff, i * sizeof(Elf64_Phdr));
    const auto next = at ? read_as<Elf64_Phdr>(read, *at) : std::nullopt;
    if (!next) return wrong("it ends within its program headers");
    headers.push_back(*next);
  }
  const auto dynamic = std::ranges::find(headers, Elf64_Word{PT_DYNAMIC}, &Elf64_Phdr::p_type);
  if (dynamic == headers.end()) return libraries;
  const auto entries = read_dynamic(read, *dynamic);
  if (!entries) return wrong("it ends within its dynamic section");
  if (entries->needed.empty()) return libraries;
  const auto strings = file_offset(headers, entries->strings);
  const auto text = [&](std::uint64_t offset) -> std::optional<std::string> {
    if (!strings || offset >= entries->strings_size) return std::nullopt;
    const auto at = sum(*strings, offset);
    return at ? text_at(read, *at) : std::nullopt;
  };
  for (const std::uint64_t offset : entries->needed) {
    auto name = text(offset);
    if (!name) return wrong("the names of its libraries are damaged");
    libraries.needed.push_back(std::move(*name));
  }
  const auto path = entries->run_path ? entries->run_path : entries->r_path;
  if (path) libraries.run_path = text(*path).value_or("");
  return libraries;
}

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
