/// What is wrong with a command line, a config file, or a variable, as far as it concerns options.
#pragma once

#include <string>

namespace hora::launch {

struct UsageError {
  std::string place;     ///< "--np", "job.yaml:3: np", "HORA_TIMEOUT in the environment"; or empty
  std::string value;     ///< as the user wrote it; empty: none, or one that is not to be printed
  std::string problem;   ///< "expected a whole number from 1 to 65536"
  std::string advice{};  ///< "did you mean --np?"; or empty
};

/// In one line: place "value": problem; advice.
std::string to_text(const UsageError& error);

}  // namespace hora::launch
