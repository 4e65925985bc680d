/// Reads a file.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace hora::internal::test {

/// All of it, byte by byte; empty where it cannot be read, as of a process that has ended.
inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace hora::internal::test
