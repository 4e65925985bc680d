#include "examples/vision/train/option_table.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstddef>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "examples/vision/command_line.h"
#include "examples/vision/train/option_checks.h"
#include "examples/vision/train/option_values.h"

namespace vision {
namespace {

constexpr WholeNumbers counts{.low = 1, .high = 1'000'000};
constexpr Interval shares{.high = 1, .without_high = true};
constexpr Interval positive{.without_low = true};

std::string optimizer_names() {
  std::string names;
  for (const OptimizerKind& kind : optimizer_kinds()) {
    names += fmt::format("{}{}: {}", names.empty() ? "" : "; ", kind.name, kind.description);
  }
  return names;
}

bool take_optimizer(const std::string& name, std::string& value) {
  for (const OptimizerKind& kind : optimizer_kinds()) {
    if (kind.name == name) {
      value = name;
      return true;
    }
  }
  return false;
}

CLI::Validator known_architecture(int image_side) {
  return CLI::Validator(
      [image_side](const std::string& name) {
        try {
          const int least = find_architecture(name).smallest_image;
          return least <= image_side ? std::string()
                                     : fmt::format(
                                           "{0} needs images of {1}x{1} pixels and more, "
                                           "and gets {2}x{2}",
                                           name, least, image_side);
        } catch (const std::invalid_argument& error) {
          return std::string(error.what());
        }
      },
      "");
}

void add_data(CLI::App& app, const ProgramDescription& program, DataOptions& data) {
  const OptionGroup group(app, "Data");
  group.text("--data,DATA", "PATH", data.path, program.data)->required()->default_str("");
  group.whole("-b,--batch,--batch-size", data.batch, {.low = 2, .high = 65536},
              "images of one rank in one backward pass");
  group.whole("-j,--workers", data.workers, {.high = 1024},
              "threads of each rank that prepare images; 0: the training waits for each batch");
  group.whole("--limit", data.limit, {},
              "use only the first N images for training and for validation; 0: all");
  group.choice(
      "--bad-images", data.bad_images, {{"raise", BadImages::raise}, {"skip", BadImages::skip}},
      "raise: an image that cannot be decoded ends the training; skip: another image takes "
      "its place, and it is named");
}

void add_network(CLI::App& app, const ProgramDescription& program, NetworkOptions& network) {
  const OptionGroup group(app, "Network");
  group.text("-a,--arch", "NAME", network.architecture, "one of " + architecture_names())
      ->check(known_architecture(program.image_side));
  group.choice<std::optional<Stem>>(
      "--stem", network.stem, {{"cifar", Stem::cifar}, {"imagenet", Stem::imagenet}},
      "of a ResNet; cifar: 3x3 convolution of stride 1; imagenet: torchvision's");
  group.whole("--width", network.width, {.high = 4096},
              "of a ResNet: channels of the first convolution, with which all other layers widen; "
              "0: the architecture's own");
  group.flag("--zero-init-residual", network.zero_init_residual,
             "the last BatchNorm of each of a ResNet's blocks begins with weight 0");
  group.text(
      "--weights,--pretrained", "FILE", network.weights,
      "safetensors file with torchvision's names to begin with; a last layer of another number of "
      "classes begins anew");
  group.flag("--channels-last", network.channels_last,
             "keep images and weights channel by channel innermost, which GPUs like");
}

void add_optimizer(CLI::App& app, OptimizerSettings& optimizer) {
  const OptionGroup group(app, "Optimizer");
  group.add("--opt,--optimizer", "NAME", optimizer.name, "one of these: " + optimizer_names(),
            optimizer_names(),
            [&optimizer](const std::string& name) { return take_optimizer(name, optimizer.name); });
  group.number("--lr,--learning-rate", optimizer.learning_rate, {},
               "highest learning rate, before it is scaled");
  group.number("--momentum", optimizer.momentum, shares,
               "momentum of sgd and lars; beta1 of adam, adamw and lamb");
  group.flag("--nesterov", optimizer.nesterov, "Nesterov's momentum, of sgd");
  group.number("--wd,--weight-decay", optimizer.weight_decay, {}, "weight decay");
  app.add_flag_callback(
         "--no-norm-decay", [&optimizer] { optimizer.decay_all = false; },
         "no weight decay on BatchNorm and biases")
      ->group(group.title());
}

void add_training(CLI::App& app, TrainingOptions& options) {
  const OptionGroup group(app, "Training and learning rate");
  ScheduleOptions& schedule = options.schedule;
  group.whole("--epochs,--num-epochs", options.epochs, counts, "passes over the training images");
  group.whole("--seed,--random-seed", options.seed, {},
              "draws weights, order of images and augmentation; where it is given, cuDNN computes "
              "the same in every run");
  group.choice("--lr-schedule,--lr-scheduler", schedule.decay,
               {{"step", Decay::step},
                {"cosine", Decay::cosine},
                {"constant", Decay::constant},
                {"steplr", Decay::step},
                {"cosineannealinglr", Decay::cosine}},
               "how the learning rate falls: by steps, along half a cosine to 0, not at all");
  group.number("--lr-step-epochs,--lr-step-size", schedule.step_epochs, positive,
               "of step: epochs after which the rate falls, each time");
  group.number("--lr-gamma", schedule.factor, {.high = 1, .without_low = true},
               "of step: what the rate is multiplied by");
  group.number("--warmup-epochs,--lr-warmup-epochs", schedule.warmup_epochs, {},
               schedule.warmup_share > 0 ? "auto" : "0",
               schedule.warmup_share > 0
                   ? fmt::format("epochs in which the rate grows, step by step; auto: {:.1f} % of "
                                 "all",
                                 100 * schedule.warmup_share)
                   : "epochs in which the rate grows, step by step");
  group.flag("--scale-lr", schedule.scale,
             "linear scaling: the rate grows with the images of a step, all ranks together");
  group
      .whole("--base-batch", schedule.base_batch, counts,
             "of --scale-lr: images of a step for which --lr is right; by default one rank's")
      ->default_str("batch");
}

void add_regularisation(CLI::App& app, RegularisationOptions& regularisation) {
  const OptionGroup group(app, "Regularisation");
  group.number("--label-smoothing", regularisation.label_smoothing, shares,
               "share of a label that is spread over all classes");
  group.number("--clip-norm,--clip-grad-norm", regularisation.clip_norm, {},
               "largest 2-norm of all gradients together; 0: not clipped");
}

void add_distribution(CLI::App& app, DistributionOptions& distribution) {
  const OptionGroup group(app, "Ranks and gradients");
  group.choice("--mode", distribution.mode,
               {{"single", Mode::single},
                {"data-parallel", Mode::data_parallel},
                {"distributed", Mode::distributed}},
               "single: one device; data-parallel: one process, all its GPUs; distributed: a "
               "process for each, under horarun");
  group.whole("--accumulate,--batches-per-allreduce", distribution.accumulate,
              {.low = 1, .high = 65536}, "backward passes of one step");
  group.flag("--sync-bn,--sync-batch-norm", distribution.sync_batch_norm,
             "BatchNorm's statistics are those of all ranks' batches");
  group.flag("--zero", distribution.zero,
             "each rank keeps its share of the optimizer's state (ZeRO, stage 1)");
  group.flag("--fused-update", distribution.fused_update,
             "with --zero, on the CPU of one node: averages, update and the parameters' way to all "
             "ranks are one pass");
  group.flag("--adasum,--use-adasum", distribution.adasum,
             "gradients are combined by Adasum in place of their average");
  using Form = GradientCompression;
  group.choice("--compression", distribution.compression,
               {{"none", Form::none},
                {"fp16", Form::float16},
                {"bf16", Form::bfloat16},
                {"top-k", Form::top_k},
                {"powersgd", Form::power_sgd}},
               "in what form gradients travel");
  group.number("--top-k-share", distribution.top_k_share, {.high = 1, .without_low = true},
               "of top-k: share of the elements that travel");
  group.whole("--powersgd-rank", distribution.power_sgd_rank, {.low = 1, .high = 65536},
              "of powersgd: rank of the matrices that travel");
  group.number("--gradient-predivide-factor", distribution.predivide,
               {.low = 0x1p-14, .high = 0x1p14},
               "gradients are divided by it before they are added, by the rest after that");
  group.choice(
      "--non-finite", distribution.non_finite,
      {{"raise", NonFinite::raise}, {"skip", NonFinite::skip}, {"ignore", NonFinite::ignore}},
      "what a NaN or an infinity in a loss or gradient of any rank leads to: the training ends and "
      "names it; all ranks leave the step out; nothing is checked");
}

void add_precision(CLI::App& app, TrainingOptions& options) {
  const OptionGroup group(app, "Device and precision");
  group.choice(
      "--device", options.device,
      {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}},
      "cuda: each rank's GPU; auto: the GPUs where every rank has one");
  PrecisionOptions& precision = options.precision;
  group.choice("--amp", precision.amp,
               {{"off", Amp::off}, {"fp16", Amp::float16}, {"bf16", Amp::bfloat16}},
               "mixed precision: fp16 (on CUDA, with a scaled loss) or bf16; by autocast unless "
               "--opt-level says O2");
  group.choice<std::optional<OptLevel>>(
      "--opt-level", precision.opt_level,
      {{"none", std::nullopt}, {"O0", OptLevel::O0}, {"O1", OptLevel::O1}, {"O2", OptLevel::O2}},
      "as in Apex: O0: float32; O1: autocast; O2: convolutions and linear layers in 16 bits, "
      "BatchNorm and master weights in float32; O1 and O2 take the type of --amp, else fp16 with "
      "a scaled loss (bf16 on a CPU without fp16)");
  group.number("--loss-scale", precision.loss_scale, positive, "dynamic",
               "of fp16, O1 and O2: what the loss is multiplied by");
}

void add_validation(CLI::App& app, ValidationOptions& validation) {
  const OptionGroup group(app, "Validation");
  group.flag("-e,--evaluate", validation.only, "validate once, and train nothing");
  group.number("--desired-acc", validation.desired_accuracy, {.low = 1, .high = 100}, "none",
               "top-1 in percent at which the training ends, and says how long it took");
  group.whole("--eval-every", validation.every, counts,
              "epochs from one validation to the next; the last one is always validated");
}

void add_checkpoints(CLI::App& app, CheckpointOptions& checkpoint) {
  const OptionGroup group(app, "Checkpoints");
  group.text("--model-dir", "FOLDER", checkpoint.folder,
             "for checkpoints, one after each epoch: the last two and the best");
  group.text("--resume", "[auto|FOLDER]", checkpoint.resume,
             "go on after a checkpoint; auto, or no value: the newest in --model-dir, if there is "
             "one; or the newest in a folder of checkpoints; or FOLDER/best, FOLDER/last, "
             "FOLDER/previous: that one");
  group.flag("--checkpoint-per-node", checkpoint.per_node,
             "the first rank of each node writes, for nodes that share no files");
  group.whole("--checkpoint-every", checkpoint.every_steps, {},
              "a checkpoint after so many steps, too; 0: after epochs only");
}

void add_output(CLI::App& app, OutputOptions& output) {
  const OptionGroup group(app, "Output");
  group.whole("-p,--print-freq", output.print_freq, {},
              "steps from one line to the next; 0: a line every ten seconds");
  group.choice("--progress", output.progress,
               {{"auto", ProgressStyle::automatic},
                {"live", ProgressStyle::live},
                {"plain", ProgressStyle::plain}},
               "live: one line that changes; plain: a line now and then; auto: live on a terminal, "
               "but for that of mpirun");
  group.text("--report", "FILE", output.report, "to write the results to, as JSON");
  group.text("--save", "FILE", output.save,
             "to save the trained model to, as safetensors; .pt: as LibTorch's archive");
  group.text(
      "--log-json", "FILE", output.logs.json,
      "to write the course of the training to, a JSON object a line, with --resume behind those "
      "that are there; see plot.py");
  group.text("--tensorboard", "FOLDER", output.logs.tensorboard,
             "to write TensorBoard's event file of this run to");
  group.whole("--log-every", output.logs.every, counts, "steps that become one entry of the logs");
}

// --resume without a value, as the last word or in front of another option, is --resume=auto.
std::vector<const char*> with_value_of_resume(int argc, const char* const* argv) {
  std::vector<const char*> words(argv, argv + argc);
  for (std::size_t i = 1; i < words.size(); ++i) {
    const bool alone = i + 1 == words.size() || words[i + 1][0] == '-';
    if (alone && std::string_view(words[i]) == "--resume") words[i] = "--resume=auto";
  }
  return words;
}

}  // namespace

ParsedOptions parse_options(const ProgramDescription& program, const TrainingOptions& defaults,
                            int argc, const char* const* argv) {
  TrainingOptions options = defaults;
  CLI::App app(program.summary, program.name);
  app.option_defaults()->take_last();
  add_data(app, program, options.data);
  add_network(app, program, options.network);
  add_optimizer(app, options.optimizer);
  add_training(app, options);
  add_regularisation(app, options.regularisation);
  add_distribution(app, options.distribution);
  add_precision(app, options);
  add_validation(app, options.validation);
  add_checkpoints(app, options.checkpoint);
  add_output(app, options.output);
  try {
    parse_words(app, argc, with_value_of_resume(argc, argv).data());
    options.deterministic = options.deterministic || app.count("--seed") > 0;
    check_combinations(app, options);
    return {options, {}, 0};
  } catch (const CLI::ParseError& error) {
    std::ostringstream text;
    const int exit_code = app.exit(error, text, text);
    if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && !program.source.empty()) {
      text << program.source << '\n';
    }
    return {std::nullopt, text.str(), exit_code == 0 ? 0 : 2};
  }
}

}  // namespace vision
