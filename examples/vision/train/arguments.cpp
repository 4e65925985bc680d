#include "examples/vision/train/arguments.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <sstream>
#include <stdexcept>
#include <system_error>
#include <variant>

#include "examples/vision/command_line.h"
#include "examples/vision/train/program.h"

namespace vision {
namespace {

// CLI::Range lets NaN pass.
CLI::Validator number_from(double low, double below) {
  const std::string range = std::isinf(below) ? ">= " + CLI::detail::to_string(low)
                                              : CLI::detail::to_string(low) + " to below " +
                                                    CLI::detail::to_string(below);
  return CLI::Validator(
      [=](const std::string& text) {
        const double value = std::strtod(text.c_str(), nullptr);
        return value >= low && value < below ? std::string()
                                             : "'" + text + "' is not a number " + range;
      },
      "");
}

// CLI11 takes "-1" for an unsigned number, and the largest one for a number beyond it.
CLI::Validator whole_number() {
  return CLI::Validator(
      [](const std::string& text) {
        std::uint64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        return error == std::errc() && end == text.data() + text.size()
                   ? std::string()
                   : "'" + text + "' is not a whole number from 0 to 2^64 - 1";
      },
      "");
}

CLI::Validator known_architecture(int side) {
  return CLI::Validator(
      [side](const std::string& name) {
        try {
          const int least = find_architecture(name).smallest_image;
          return least <= side ? std::string()
                               : fmt::format("{0} needs images of {1}x{1}, and these have {2}x{2}",
                                             name, least, side);
        } catch (const std::invalid_argument& error) {
          return std::string(error.what());
        }
      },
      "");
}

// A stem that was not chosen is a ResNet's CIFAR stem.
void choose_stem(Arguments& arguments) {
  const Architecture& architecture = find_architecture(arguments.architecture);
  if (std::holds_alternative<ResNetShape>(architecture.shape)) {
    arguments.stem = arguments.stem.value_or(Stem::cifar);
  } else if (arguments.stem) {
    throw CLI::ValidationError("--stem", arguments.architecture + " has none; only ResNets have");
  }
}

void add_options(CLI::App& app, const Program& program, Arguments& arguments) {
  static const std::map<std::string, Stem> stems{{"cifar", Stem::cifar},
                                                 {"imagenet", Stem::imagenet}};
  static const std::map<std::string, ProgressStyle> styles{{"auto", ProgressStyle::automatic},
                                                           {"live", ProgressStyle::live},
                                                           {"plain", ProgressStyle::plain}};
  static const std::map<std::string, DeviceChoice> devices{
      {"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}};
  static const std::map<std::string, Amp> precisions{
      {"off", Amp::off}, {"fp16", Amp::float16}, {"bf16", Amp::bfloat16}};
  const double infinity = std::numeric_limits<double>::infinity();

  app.add_option("--data", arguments.data, program.data)->required();
  app.add_option("--epochs", arguments.epochs, "passes over the training images")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--batch", arguments.batch, "images of one rank in one step")
      ->check(CLI::Range(2, 65536));
  app.add_option("--lr", arguments.learning_rate,
                 "highest learning rate: reached after a sixth of all steps, then a cosine to 0")
      ->check(number_from(0, infinity));
  app.add_option("--momentum", arguments.momentum, "momentum of SGD")->check(number_from(0, 1));
  app.add_option("--weight-decay", arguments.weight_decay, "weight decay of SGD")
      ->check(number_from(0, infinity));
  app.add_option("--seed", arguments.seed, "draws weights, order of images and augmentation")
      ->check(whole_number());
  app.add_option("-a,--arch", arguments.architecture,
                 "architecture: one of " + architecture_names())
      ->check(known_architecture(program.image_side));
  app.add_option("--stem", arguments.stem,
                 "of a ResNet; cifar: 3x3 convolution of stride 1; imagenet: torchvision's")
      ->transform(CLI::CheckedTransformer(stems))
      ->default_str("cifar");
  app.add_option("--device", arguments.device,
                 "cpu; cuda: each rank's GPU; auto: the GPUs where every rank has one")
      ->transform(CLI::CheckedTransformer(devices))
      ->default_str("auto");
  app.add_option("--amp", arguments.amp,
                 "automatic mixed precision: fp16 (on CUDA, with a scaled loss) or bf16")
      ->transform(CLI::CheckedTransformer(precisions))
      ->default_str("off");
  app.add_flag("--channels-last", arguments.channels_last,
               "keep images and weights channel by channel innermost, which GPUs like");
  app.add_option("--workers", arguments.workers,
                 "threads of each rank that prepare images; 0: the training waits for each batch")
      ->check(CLI::Range(0, 1024));
  app.add_option("--limit", arguments.limit,
                 "use only the first N images for training and for validation; 0: all")
      ->check(whole_number());
  app.add_option("--report", arguments.report, "file to write the results to, as JSON")
      ->default_str("none");
  app.add_option("--log-json", arguments.logs.json,
                 "file to write the course of the training to, a JSON object a line; see plot.py")
      ->default_str("none");
  app.add_option("--tensorboard", arguments.logs.tensorboard,
                 "folder to write TensorBoard's event file of this run to")
      ->default_str("none");
  app.add_option("--save", arguments.save, "file to save the trained model to")
      ->default_str("none");
  app.add_option("--model-dir", arguments.model_dir,
                 "folder for checkpoints, one after each epoch: the last two and the best")
      ->default_str("none");
  app.add_option("--resume", arguments.resume,
                 "go on after a checkpoint's epoch; auto: the newest in --model-dir, if there is "
                 "one; or the folder of checkpoints")
      ->default_str("none");
  app.add_option("--progress", arguments.progress,
                 "live: one line that changes; plain: a line now and then; auto: live on a "
                 "terminal of known width, which horarun and mpirun hide")
      ->transform(CLI::CheckedTransformer(styles))
      ->default_str("auto");
}

}  // namespace

ParsedArguments parse_arguments(const Program& program, int argc, const char* const* argv) {
  Arguments arguments = program.defaults;
  CLI::App app(program.summary, program.name);
  app.option_defaults()->always_capture_default();
  add_options(app, program, arguments);
  try {
    parse_words(app, argc, argv);
    choose_stem(arguments);
    if (arguments.resume == "auto" && arguments.model_dir.empty()) {
      throw CLI::ValidationError("--resume", "auto needs --model-dir");
    }
    return {arguments, {}, 0};
  } catch (const CLI::ParseError& error) {
    std::ostringstream text;
    const int exit_code = app.exit(error, text, text);
    return {std::nullopt, text.str(), exit_code == 0 ? 0 : 2};
  }
}

}  // namespace vision
