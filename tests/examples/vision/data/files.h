/// Whole files of a test.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <vector>

namespace vision::test {

using Bytes = std::vector<std::uint8_t>;

inline Bytes read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error("Cannot read " + path.string());
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A file of fixtures/.
inline std::filesystem::path fixture(const std::filesystem::path& name) {
  return std::filesystem::path(VISION_FIXTURES) / name;
}

}  // namespace vision::test
