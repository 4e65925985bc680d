/// Which libraries a program is linked with, from its file. Nothing of it is executed or loaded.
///
/// ELF (System V gABI, chapters 4 and 5; 64 bits, little-endian): the program headers name the
/// dynamic section, whose DT_NEEDED entries are offsets into its string table. Every offset and
/// number is checked against the bounds below, whatever the file holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace hora::launch {

struct ElfLibraries {
  std::uint16_t machine = 0;        ///< e_machine: 62 is x86-64, 183 AArch64
  std::vector<std::string> needed;  ///< names as linked ("libmpi.so.40"), in order; empty: static
  std::string run_path;             ///< DT_RUNPATH, else DT_RPATH

  bool operator==(const ElfLibraries&) const = default;
};

/// Reads exactly the bytes of `target` from `offset` of a file; false where it holds fewer.
using ReadAt = std::function<bool(std::uint64_t offset, std::span<std::byte> target)>;

inline constexpr std::size_t kMostElfHeaders = 256;
inline constexpr std::size_t kMostDynamicEntries = 4096;
inline constexpr std::size_t kLongestElfText = 4096;

/// The error says what is wrong with the file, without its name. Pure but for `read`.
tl::expected<ElfLibraries, std::string> read_elf_libraries(const ReadAt& read);

}  // namespace hora::launch
