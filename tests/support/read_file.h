/// What a file holds.
#pragma once

#include <fstream>
#include <iterator>
#include <string>

namespace hora::internal::test {

/// All of it, byte by byte; nothing where it cannot be read.
inline std::string read_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

}  // namespace hora::internal::test
