/// Small files that a user names: hostfiles and config files.
#pragma once

#include <cstddef>
#include <string>
#include <tl/expected.hpp>

namespace hora::launch {

inline constexpr std::size_t kLargestInputFile = std::size_t{1} << 20;

/// The whole of a file, or of a pipe such as bash's <(command). Never waits longer than 10 s for
/// more. The error says what is wrong with it, without the path.
tl::expected<std::string, std::string> read_input_file(const std::string& path,
                                                       std::size_t largest = kLargestInputFile);

}  // namespace hora::launch
