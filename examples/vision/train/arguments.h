/// A trainer's command line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "examples/vision/logs/progress.h"
#include "examples/vision/logs/training_log.h"
#include "examples/vision/models/architectures.h"

namespace vision {

/// automatic: the rank's GPU where the job has them, else the CPU.
enum class DeviceChoice { automatic, cpu, cuda };
/// Of convolutions and matrix products, under autocast; parameters and gradients stay float32.
enum class Amp { off, float16, bfloat16 };

struct Arguments {
  int epochs = 4;
  int batch = 32;  ///< images of one rank in one step
  double learning_rate = 0.05;
  double momentum = 0.9;
  double weight_decay = 5e-4;
  std::uint64_t seed = 1;
  std::string architecture = "resnet18";
  std::optional<vision::Stem> stem;  ///< of a ResNet, and only there: the CIFAR stem by default
  DeviceChoice device = DeviceChoice::automatic;
  Amp amp = Amp::off;
  bool channels_last = false;
  bool sync_batch_norm = false;
  std::string data;
  int workers = 1;        ///< threads that prepare images
  std::size_t limit = 0;  ///< images, of training and of validation; 0: all
  std::string report;     ///< empty: none is written
  std::string save;       ///< empty: the model is not saved
  std::string model_dir;  ///< for checkpoints; empty: none are written
  std::string resume;     ///< empty: from the beginning; "auto": from model_dir; or a folder
  vision::ProgressStyle progress = vision::ProgressStyle::automatic;
  vision::LogTargets logs = {};
};

/// Arguments, or where there are none (an error, or --help) what to print and the exit code.
struct ParsedArguments {
  std::optional<Arguments> arguments;
  std::string text;
  int exit_code = 0;
};
struct Program;

ParsedArguments parse_arguments(const Program& program, int argc, const char* const* argv);

}  // namespace vision
