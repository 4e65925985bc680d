#include "core/launch/command/program.h"

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/support/read_file.h"
#include "tests/support/seed.h"
#include "tests/support/temporary_folder.h"

namespace hora::launch {
namespace {

using internal::test::read_file;
using testing::Contains;
using testing::HasSubstr;
using testing::StartsWith;

tl::expected<ElfLibraries, std::string> libraries_in(const std::string& file) {
  return read_elf_libraries([&](std::uint64_t offset, std::span<std::byte> target) {
    if (offset > file.size() || target.size() > file.size() - offset) return false;
    std::memcpy(target.data(), file.data() + offset, target.size());
    return true;
  });
}

TEST(ElfLibraries, OfThisTest) {
  const auto libraries = libraries_in(read_file("/proc/self/exe"));
  ASSERT_TRUE(libraries) << libraries.error();
  EXPECT_THAT(libraries->needed, Contains(StartsWith("libc.so")));
  EXPECT_THAT(libraries->needed, Contains(StartsWith("libstdc++.so")));
  EXPECT_NE(libraries->machine, 0);
}

TEST(ElfLibraries, SaysWhatAFileIsInstead) {
  std::string file = read_file("/proc/self/exe");
  EXPECT_EQ(libraries_in("").error(), "it is no ELF file");
  EXPECT_EQ(libraries_in("#!/bin/sh").error(), "it is no ELF file");
  std::string changed = file;
  changed[EI_CLASS] = ELFCLASS32;
  EXPECT_EQ(libraries_in(changed).error(), "it is a program of 32 bits");
  changed = file;
  changed[EI_DATA] = ELFDATA2MSB;
  EXPECT_EQ(libraries_in(changed).error(), "it is a big-endian program");
  changed = file;
  changed[offsetof(Elf64_Ehdr, e_type)] = ET_REL;
  EXPECT_THAT(libraries_in(changed).error(), HasSubstr("an object file"));
  EXPECT_EQ(libraries_in(file.substr(0, 100)).error(), "it ends within its program headers");
}

/// A file of a header, two program headers, a dynamic section, and its texts.
struct SmallElf {
  Elf64_Ehdr header{};
  Elf64_Phdr load{};
  Elf64_Phdr dynamic{};
  std::array<Elf64_Dyn, 5> entries{};
  std::array<char, 24> texts = {"\0libmpi.so.40\0$ORIGIN"};

  static constexpr std::uint64_t kAddress = 0x400000;
  SmallElf() {
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_type = ET_DYN;
    header.e_machine = EM_X86_64;
    header.e_phoff = offsetof(SmallElf, load);
    header.e_phentsize = sizeof(Elf64_Phdr);
    header.e_phnum = 2;
    load.p_type = PT_LOAD;
    load.p_vaddr = kAddress;
    load.p_filesz = sizeof(SmallElf);
    dynamic.p_type = PT_DYNAMIC;
    dynamic.p_offset = offsetof(SmallElf, entries);
    dynamic.p_filesz = sizeof entries;
    entries = {{{DT_NEEDED, {1}},
                {DT_STRTAB, {kAddress + offsetof(SmallElf, texts)}},
                {DT_STRSZ, {sizeof texts}},
                {DT_RUNPATH, {14}},
                {DT_NULL, {0}}}};
  }
  tl::expected<ElfLibraries, std::string> libraries() const {
    std::string file(sizeof *this, '\0');
    std::memcpy(file.data(), this, sizeof *this);
    return libraries_in(file);
  }
};

TEST(ElfLibraries, AreFoundByTheirOffsets) {
  const auto libraries = SmallElf().libraries();
  ASSERT_TRUE(libraries) << libraries.error();
  EXPECT_EQ(*libraries, (ElfLibraries{EM_X86_64, {"libmpi.so.40"}, "$ORIGIN"}));
  SmallElf alone;
  alone.header.e_phnum = 1;
  EXPECT_EQ(alone.libraries(), (ElfLibraries{EM_X86_64, {}, ""}));
}

TEST(ElfLibraries, AreRefusedBeyondTheirBounds) {
  constexpr std::uint64_t kHuge = ~std::uint64_t{0};
  const auto refused = [](const char* why, const auto& damage) {
    SmallElf elf;
    damage(elf);
    const auto libraries = elf.libraries();
    ASSERT_FALSE(libraries);
    EXPECT_THAT(libraries.error(), HasSubstr(why));
  };
  const char* const kNames = "the names of its libraries are damaged";
  refused(kNames, [](SmallElf& elf) { elf.entries[2].d_un.d_val = 1; });
  refused(kNames, [](SmallElf& elf) { elf.entries[0].d_un.d_val = kHuge; });
  refused(kNames, [](SmallElf& elf) { elf.entries[1].d_un.d_ptr = 0; });
  refused(kNames, [](SmallElf& elf) { elf.entries[1].d_un.d_ptr = kHuge; });
  refused(kNames, [](SmallElf& elf) { elf.load.p_offset = kHuge; });
  refused(kNames, [](SmallElf& elf) { elf.texts.fill('a'); });
  refused("its dynamic section", [](SmallElf& elf) { elf.dynamic.p_offset = kHuge - 8; });
  refused("its program headers", [](SmallElf& elf) { elf.header.e_phoff = kHuge - 8; });
  refused("are damaged", [](SmallElf& elf) { elf.header.e_phnum = kMostElfHeaders + 1; });
  refused("are damaged", [](SmallElf& elf) { elf.header.e_phentsize = 1; });
}

TEST(ElfLibraries, SurvivesDamage) {
  const std::string file = read_file("/bin/sh");
  auto random = internal::test::generator();
  const auto draw = [&](std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(random);
  };
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = file.substr(0, draw(2) ? file.size() : draw(file.size()));
    for (std::size_t i = draw(8); i > 0 && !damaged.empty(); --i) {
      damaged[draw(std::min<std::size_t>(damaged.size(), draw(2) ? 64 : 1024))] =
          static_cast<char>(draw(256));
    }
    const auto libraries = libraries_in(damaged);
    EXPECT_TRUE(!libraries || libraries->needed.size() <= kMostDynamicEntries);
  }
}

class InspectProgram : public testing::Test {
 protected:
  std::string file(const std::string& name, const std::string& text, bool executable = true) {
    std::ofstream(folder_.file(name), std::ios::binary) << text;
    if (executable) {
      std::filesystem::permissions(folder_.file(name), std::filesystem::perms::owner_all);
    }
    return folder_.file(name);
  }
  static std::string refusal(const std::string& program) {
    const auto inspected = inspect_program(program, "/bin");
    EXPECT_FALSE(inspected) << program;
    return inspected ? "" : inspected.error();
  }
  internal::test::TemporaryFolder folder_;
};

TEST(ProgramFrom, IsAPathFromTheFolder) {
  EXPECT_EQ(program_from("/home/me", "./train"), "/home/me/train");
  EXPECT_EQ(program_from("/home/me", "bin/train"), "/home/me/bin/train");
  EXPECT_EQ(program_from("/home/me", "/opt/train"), "/opt/train");
  EXPECT_EQ(program_from("/home/me", "python3"), "python3");
}

TEST_F(InspectProgram, FindsProgramsAndScripts) {
  const auto self = inspect_program("/proc/self/exe", "");
  ASSERT_TRUE(self) << self.error();
  EXPECT_TRUE(self->libraries);
  const std::string path = file("train", "#!/usr/bin/python3\n");
  const auto script = inspect_program("train", "/bin:" + folder_.path().string());
  ASSERT_TRUE(script) << script.error();
  EXPECT_EQ(script->path, path);
  EXPECT_FALSE(script->libraries);
}

TEST_F(InspectProgram, SaysWhyItCannotRun) {
  EXPECT_THAT(refusal("/no/such"), HasSubstr("\"/no/such\" cannot be run: No such file"));
  EXPECT_THAT(refusal("nosuch"),
              testing::AllOf(HasSubstr("PATH (/bin)"), HasSubstr("write \"./nosuch\"")));
  EXPECT_THAT(refusal(folder_.path()), HasSubstr("it is a folder"));
  EXPECT_THAT(refusal(file("plain", "#!/bin/sh\n", false)), HasSubstr("chmod +x"));
  EXPECT_THAT(refusal(file("empty", "")), HasSubstr("it is empty"));
  EXPECT_THAT(refusal(file("text", "echo hello")), HasSubstr("begins with #!"));
  EXPECT_THAT(refusal("/dev/null"), HasSubstr("no regular file"));
  std::string other = read_file("/proc/self/exe");
  other[offsetof(Elf64_Ehdr, e_machine)] = static_cast<char>(EM_S390);
  EXPECT_THAT(refusal(file("other", other)), HasSubstr("it is for machine 22"));
}

TEST(LinkedMpi, IsToldFromLibraries) {
  EXPECT_EQ(linked_mpi({"libc.so.6"}), LinkedMpi::none);
  EXPECT_EQ(linked_mpi({"libmpi_cxx.so.40", "libmpi.so.40", "libc.so.6"}), LinkedMpi::open_mpi);
  EXPECT_EQ(linked_mpi({"libmpich.so.12"}), LinkedMpi::mpich);
  EXPECT_EQ(linked_mpi({"libmpi.so.12"}), LinkedMpi::mpich);
}

TEST(LinkedMpi, AndItsMpirunBelongTogether) {
  const MpiInstallation open_mpi{MpiFlavour::open_mpi_4, "4.1.4", "/usr/bin/mpirun", ""};
  const MpiInstallation mpich{MpiFlavour::hydra, "4.0.2", "/usr/bin/mpirun.mpich", ""};
  EXPECT_EQ(wrong_with_linked_mpi("p", LinkedMpi::open_mpi, open_mpi), "");
  EXPECT_EQ(wrong_with_linked_mpi("p", LinkedMpi::mpich, mpich), "");
  EXPECT_EQ(wrong_with_linked_mpi("p", LinkedMpi::none, mpich), "");
  EXPECT_THAT(wrong_with_linked_mpi("p", LinkedMpi::mpich, open_mpi),
              testing::AllOf(HasSubstr("linked with MPICH"), HasSubstr("Open MPI 4.1.4"),
                             HasSubstr("mpirun.mpich")));
  EXPECT_THAT(wrong_with_linked_mpi("p", LinkedMpi::open_mpi, mpich),
              HasSubstr("linked with Open MPI"));
}

}  // namespace
}  // namespace hora::launch
