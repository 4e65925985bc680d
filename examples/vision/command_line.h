/// Reading of words into the options of a CLI::App.
#pragma once

#include <CLI/App.hpp>

namespace vision {

/// app.parse(), with CLI::ArgumentMismatch where an option stands without its value: as `--data=`,
/// or with another option for its next word. CLI11 takes the next word for the value then.
void parse_words(CLI::App& app, int argc, const char* const* argv);

}  // namespace vision
