/// Reading of words into the options of a CLI::App.
#pragma once

#include <CLI/App.hpp>

namespace vision {

/// app.parse(), where `--batch_size` is `--batch-size`. An option without its value, as `--data=`
/// or in front of another option, is a CLI::ArgumentMismatch, where CLI11 takes the next word.
void parse_words(CLI::App& app, int argc, const char* const* argv);

}  // namespace vision
