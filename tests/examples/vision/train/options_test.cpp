// Command lines of a trainer, each with the fields that it sets or what it prints:
// command_lines.txt. TEST_UPDATE_GOLDEN=1 writes it anew.
#include "examples/vision/train/options.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "tests/support/golden.h"

/// As the value, or null. Nothing is read.
template <class T>
struct nlohmann::adl_serializer<std::optional<T>> {
  static void to_json(json& to, const std::optional<T>& value) {
    to = value ? json(*value) : json();
  }
  static void from_json(const json&, std::optional<T>&) {}
};

namespace vision {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DataOptions, path, batch, workers, limit, bad_images)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(NetworkOptions, architecture, stem, width, zero_init_residual,
                                   weights, channels_last)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OptimizerSettings, name, learning_rate, momentum, weight_decay,
                                   nesterov, decay_all)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ScheduleOptions, decay, step_epochs, factor, warmup_epochs,
                                   scale, base_batch)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RegularisationOptions, label_smoothing, clip_norm)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DistributionOptions, mode, accumulate, sync_batch_norm, zero,
                                   fused_update, compression, non_finite)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PrecisionOptions, amp, opt_level, loss_scale)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ValidationOptions, only, desired_accuracy, every)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CheckpointOptions, folder, resume, per_node, every_steps)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LogTargets, json, tensorboard, append, every)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OutputOptions, report, save, logs, progress, print_freq)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TrainingOptions, epochs, seed, deterministic, device, data,
                                   network, optimizer, schedule, regularisation, distribution,
                                   precision, validation, checkpoint, output)

namespace {

using nlohmann::json;

// Images of 32x32, for which AlexNet is too large.
Program small_program() {
  Program program{.name = "small",
                  .summary = "Trains.",
                  .data = "a folder",
                  .image_side = 32,
                  .source = "fetch.sh downloads it"};
  program.defaults.epochs = 17;
  program.defaults.data.batch = 48;
  program.defaults.network.stem = Stem::cifar;
  program.defaults.optimizer.learning_rate = 1e-5;
  program.defaults.optimizer.decay_all = true;
  program.defaults.schedule.warmup_share = 1.0 / 8;
  program.defaults.output.progress = ProgressStyle::live;
  return program;
}

/// The fields that a line changes, or the exit code and what is printed.
std::string outcome_of(const std::string& line) {
  std::istringstream stream(line);
  std::vector<std::string> words{"small"};
  for (std::string word; stream >> word;) words.push_back(word == "''" ? "" : word);
  std::vector<const char*> arguments;
  for (const std::string& word : words) arguments.push_back(word.c_str());
  const Program program = small_program();
  const ParsedOptions parsed =
      parse_options(program, static_cast<int>(arguments.size()), arguments.data());
  if (!parsed.options) return "exit " + std::to_string(parsed.exit_code) + ": " + parsed.text;
  const json before = json(program.defaults).flatten();
  const json after = json(*parsed.options).flatten();
  std::string text;
  for (const auto& [field, value] : after.items()) {
    if (value != before.at(field)) text += " " + field.substr(1) + "=" + value.dump();
  }
  return "sets" + text + "\n";
}

TEST(Options, HaveTheirOutcomesWordForWordAndEachThatHelpListsIsTaken) {
  std::string taken = " --help -h --data ";
  hora::internal::test::expect_golden_outcomes(
      "examples/vision/train/command_lines.txt", [&](const std::string& line) {
        const std::string outcome = outcome_of(line);
        if (!outcome.starts_with("exit")) {
          taken += std::regex_replace(line, std::regex("="), " ") + " ";
        }
        return outcome;
      });

  const std::string help = outcome_of("--help");
  const std::regex row("\n  (-[^ {]*)");
  std::size_t names = 0;
  for (std::sregex_iterator line(help.begin(), help.end(), row), end; line != end; ++line) {
    std::istringstream column((*line)[1]);
    for (std::string name; std::getline(column, name, ','); ++names) {
      EXPECT_THAT(taken, testing::HasSubstr(" " + name + " "));
    }
  }
  EXPECT_GT(names, 60U) << help;
}

}  // namespace
}  // namespace vision
