/// Whole files of a test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "tests/support/read_file.h"

namespace vision::test {

using Bytes = std::vector<std::uint8_t>;

inline Bytes read_bytes(const std::filesystem::path& path) {
  const std::string bytes = hora::internal::test::read_file(path);
  return {bytes.begin(), bytes.end()};
}

/// A file of fixtures/.
inline std::filesystem::path fixture(const std::filesystem::path& name) {
  return std::filesystem::path(VISION_FIXTURES) / name;
}

}  // namespace vision::test
