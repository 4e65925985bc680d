/// The command line that all trainers share.
#pragma once

#include <optional>
#include <string>

#include "examples/vision/train/options.h"

namespace vision {

/// What --help says of a program beside its options.
struct ProgramDescription {
  std::string name;     ///< "cifar10"
  std::string summary;  ///< first line of --help
  std::string data;     ///< what --data takes
  int image_side;       ///< pixels of an image's sides: architectures that need more are refused
  /// Where the data can be had: a sentence for those who come without. Empty: nothing is said.
  std::string source = {};
};

/// Options, or where there are none (an error, or --help) what to print and the exit code: 0 for
/// --help, else 2.
struct ParsedOptions {
  std::optional<TrainingOptions> options;
  std::string text;
  int exit_code = 0;
};

/// `defaults` are the program's, and what --help shows. A default stem is that of ResNets; other
/// architectures get none. Pure; any thread.
ParsedOptions parse_options(const ProgramDescription& program, const TrainingOptions& defaults,
                            int argc, const char* const* argv);

}  // namespace vision
