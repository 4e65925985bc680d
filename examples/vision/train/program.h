/// A trainer of images: what one gives, and main() of all.
///
///     int main(int argc, char** argv) {
///       return vision::run_program({.description = {.name = "cifar10", ...}, ...}, argc, argv);
///     }
#pragma once

#include <functional>

#include "examples/vision/data/data_sets.h"
#include "examples/vision/data/transform.h"
#include "examples/vision/train/option_table.h"

namespace vision {

struct Transforms {
  TransformOptions training;
  TransformOptions validation;
};

struct Program {
  ProgramDescription description;
  TrainingOptions defaults;
  /// What is done with the images of a data set; throws std::runtime_error, which says what is
  /// expected, for one that the program does not train on. The layout is the options'.
  std::function<Transforms(DataKind)> transforms;
};

/// Reads the command line, prepares on every rank, trains, and writes the report. The exit code: 0;
/// 2 for a wrong command line; 75 (stopped_exit_code) where SIGTERM or SIGUSR1 has ended the
/// training before its last epoch; 1 for any other error, which the lowest rank that has it prints.
int run_program(const Program& program, int argc, char** argv);

}  // namespace vision
