/// What another program prints, for programs that answer at once.
#pragma once

#include <chrono>
#include <string>
#include <tl/expected.hpp>
#include <vector>

namespace hora::launch {

struct CapturedOutput {
  std::string text;  ///< of stdout and stderr; what exceeds `kMostCaptured` bytes is left out
  int status = 0;    ///< exit status; 128 + signal where a signal ended it
};
inline constexpr std::size_t kMostCaptured = std::size_t{64} << 10;

/// Runs arguments[0] (a path) without input and waits for its end; kills it, and what it has
/// started in its process group, after `limit`. The error says why there is no output.
/// Throws std::system_error where this process has no descriptors left. Any thread.
tl::expected<CapturedOutput, std::string> captured_output(const std::vector<std::string>& arguments,
                                                          std::chrono::milliseconds limit);

}  // namespace hora::launch
