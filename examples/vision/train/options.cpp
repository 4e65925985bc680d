#include "examples/vision/train/options.h"

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <cfloat>
#include <charconv>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "examples/vision/command_line.h"

namespace vision {
namespace {

/// Numbers from low to high, and how an error calls them.
struct Range {
  double low;
  double high;
  std::string expected;
};

Range whole(double low, double high) {
  return {low, high, fmt::format("a whole number from {:.0f} to {:.0f}", low, high)};
}

const Range kCounts = whole(1, 1'000'000);
const Range kAnyWhole{0, 0x1p64, "a whole number from 0 to 2^64 - 1"};
const Range kNotNegative{0, DBL_MAX, "a number of 0 or more"};
const Range kPositive{DBL_TRUE_MIN, DBL_MAX, "a number above 0"};
const Range kShare{0, 0x1.fffffffffffffp-1, "a number from 0 to below 1"};

/// By std::from_chars: CLI11's own conversion rounds twice, and its range check takes NaN.
template <class T>
bool read(const std::string& word, const Range& range, T& value) {
  std::conditional_t<std::is_integral_v<T>, std::uint64_t, double> given{};
  const char* const last = word.data() + word.size();
  const auto [end, error] = std::from_chars(word.data(), last, given);
  const auto number = static_cast<double>(given);
  if (error != std::errc() || end != last || !(number >= range.low && number <= range.high)) {
    return false;
  }
  value = static_cast<T>(given);
  return true;
}

/// Adds options that write to fields. All that is passed by reference must outlive the app.
class Table {
 public:
  explicit Table(CLI::App& app) : app_(app) { app.option_defaults()->take_last(); }

  /// The options that follow are listed under this title.
  void begin(const char* title) const { app_.option_defaults()->group(title); }

  CLI::Option* text(const std::string& names, const char* type, std::string& value,
                    const std::string& description) const {
    return app_.add_option(names, value, description)
        ->type_name(type)
        ->default_str(value.empty() ? "none" : value);
  }
  CLI::Option* flag(const std::string& names, bool& value, const std::string& description) const {
    return app_.add_flag(names, value, description);
  }
  template <class T>
  CLI::Option* number(const std::string& names, T& value, const Range& range,
                      const std::string& description) const {
    return option(names, std::is_integral_v<T> ? "N" : "X", fmt::format("{}", value),
                  range.expected, description,
                  [&value, range](const std::string& word) { return read(word, range, value); });
  }
  /// Unset shows as `unset`, and a value of that text unsets.
  CLI::Option* number(const std::string& names, std::optional<double>& value,
                      const std::string& unset, const Range& range,
                      const std::string& description) const {
    return option(names, "X", value ? fmt::format("{}", *value) : unset,
                  range.expected + ", or " + unset, description,
                  [&value, unset, range](const std::string& word) {
                    double given = 0;
                    const bool right = read(word, range, given);
                    value = right ? std::optional(given) : std::nullopt;
                    return right || word == unset;
                  });
  }
  /// The first of several names of a value is shown.
  template <class T>
  void choice(const std::string& names, T& value,
              const std::vector<std::pair<std::string, T>>& choices,
              const std::string& description) const {
    std::vector<std::string> known;
    std::string shown;
    for (const auto& [name, chosen] : choices) {
      known.push_back(name);
      if (chosen == value && shown.empty()) shown = name;
    }
    option(names, fmt::format("{}", fmt::join(known, "|")), shown,
           fmt::format("one of {}", fmt::join(known, ", ")), description,
           [&value, choices](const std::string& word) {
             for (const auto& [name, chosen] : choices) {
               if (name != word) continue;
               value = chosen;
               return true;
             }
             return false;
           });
  }

 private:
  /// `take` stores the value, or refuses it by false.
  CLI::Option* option(const std::string& names, const std::string& type, const std::string& shown,
                      const std::string& expected, const std::string& description,
                      const std::function<bool(const std::string&)>& take) const {
    const auto check = [take, expected](const std::string& word) {
      return take(word) ? std::string() : "'" + word + "' is not " + expected;
    };
    return app_
        .add_option_function<std::string>(
            names, [](const std::string&) {}, description)
        ->check(CLI::Validator(check, ""))
        ->type_name(type)
        ->default_str(shown);
  }

  CLI::App& app_;
};

/// The ten of a first run, in the group of --help itself.
void add_first(const Table& table, const Program& program, TrainingOptions& options) {
  const auto is_known = [side = program.image_side](const std::string& name) {
    try {
      const int least = find_architecture(name).smallest_image;
      if (least <= side) return std::string();
      return fmt::format("{0} needs images of {1}x{1} pixels and more, and gets {2}x{2}", name,
                         least, side);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
  };
  table.text("--data,DATA", "PATH", options.data.path, program.data)->required()->default_str("");
  table.text("-a,--arch", "NAME", options.network.architecture, "one of " + architecture_names())
      ->check(CLI::Validator(is_known, ""));
  table.number("--epochs,--num-epochs", options.epochs, kCounts, "passes over the training images");
  table.number("-b,--batch,--batch-size", options.data.batch, whole(2, 65536),
               "images of one rank in one backward pass");
  table.number("--lr,--learning-rate", options.optimizer.learning_rate, kNotNegative,
               "highest learning rate, before it is scaled");
  table.number("--seed,--random-seed", options.seed, kAnyWhole,
               "of weights, order and augmentation; where given, cuDNN computes the same each run");
  table.number("-j,--workers", options.data.workers, whole(0, 1024),
               "threads of each rank that prepare images; 0: the training waits for each batch");
  table.text("--model-dir", "FOLDER", options.checkpoint.folder,
             "for checkpoints, one after each epoch: the last two and the best");
  table.text("--resume", "[auto|FOLDER]", options.checkpoint.resume,
             "go on after a checkpoint; auto, or no value: the newest in --model-dir, if any; or "
             "the newest in FOLDER; or FOLDER/best, FOLDER/last, FOLDER/previous");
  table.text("--save", "FILE", options.output.save,
             "to save the trained model to, as safetensors; .pt: as LibTorch's archive");
}

void add_data_and_network(const Table& table, TrainingOptions& options) {
  table.begin("Data and network");
  NetworkOptions& network = options.network;
  table.number("--limit", options.data.limit, kAnyWhole,
               "use only the first N images for training and for validation; 0: all");
  table.choice<BadImages>("--bad-images", options.data.bad_images,
                          {{"raise", BadImages::raise}, {"skip", BadImages::skip}},
                          "an image that cannot be decoded ends the training, or another one takes "
                          "its place and it is named");
  table.choice<std::optional<Stem>>(
      "--stem", network.stem, {{"cifar", Stem::cifar}, {"imagenet", Stem::imagenet}},
      "of a ResNet; cifar: 3x3 convolution of stride 1; imagenet: torchvision's");
  table.number("--width", network.width, whole(0, 4096),
               "channels of a ResNet's first convolution; others widen with it; 0: its own");
  table.flag("--zero-init-residual", network.zero_init_residual,
             "the last BatchNorm of each of a ResNet's blocks begins with weight 0");
  table.text("--weights,--pretrained", "FILE", network.weights,
             "safetensors file with torchvision's names to begin with; a last layer of another "
             "number of classes begins anew");
  table.flag("--channels-last", network.channels_last,
             "keep images and weights channel by channel innermost, which GPUs like");
}

void add_optimizer(const Table& table, TrainingOptions& options) {
  table.begin("Optimizer and learning rate");
  OptimizerSettings& optimizer = options.optimizer;
  ScheduleOptions& schedule = options.schedule;
  table.choice<std::string>("--opt,--optimizer", optimizer.name,
                            {{"sgd", "sgd"}, {"adam", "adam"}, {"adamw", "adamw"}},
                            "SGD with momentum, Adam, or Adam with decoupled weight decay");
  table.number("--momentum", optimizer.momentum, kShare, "of sgd; beta1 of adam and adamw");
  table.flag("--nesterov", optimizer.nesterov, "Nesterov's momentum, of sgd");
  table.number("--wd,--weight-decay", optimizer.weight_decay, kNotNegative, "weight decay");
  table.flag("--no-norm-decay{false}", optimizer.decay_all,
             "no weight decay on BatchNorm and biases");
  table.choice<Decay>("--lr-schedule,--lr-scheduler", schedule.decay,
                      {{"step", Decay::step},
                       {"cosine", Decay::cosine},
                       {"constant", Decay::constant},
                       {"steplr", Decay::step},
                       {"cosineannealinglr", Decay::cosine}},
                      "how the rate falls: by steps, along half a cosine to 0, not at all");
  table.number("--lr-step-epochs,--lr-step-size", schedule.step_epochs, kPositive,
               "of step: epochs after which the rate falls, each time");
  table.number("--lr-gamma", schedule.factor, {kPositive.low, 1, "a number above 0 to 1"},
               "of step: what the rate is multiplied by");
  const double share = schedule.warmup_share;
  table.number("--warmup-epochs,--lr-warmup-epochs", schedule.warmup_epochs,
               share > 0 ? "auto" : "0", kNotNegative,
               "epochs in which the rate grows, step by step" +
                   (share > 0 ? fmt::format("; auto: {:.1f} % of all", 100 * share) : ""));
  table.flag("--scale-lr", schedule.scale,
             "linear scaling: the rate grows with the images of a step, all ranks together");
  table.number("--base-batch", schedule.base_batch, kCounts, "images of a step that --lr is for")
      ->default_str("batch")
      ->needs("--scale-lr");
  table.number("--label-smoothing", options.regularisation.label_smoothing, kShare,
               "share of a label that is spread over all classes");
  table.number("--clip-norm,--clip-grad-norm", options.regularisation.clip_norm, kNotNegative,
               "largest 2-norm of all gradients together; 0: not clipped");
}

void add_distribution(const Table& table, DistributionOptions& distribution) {
  table.begin("Ranks and gradients");
  table.choice<Mode>("--mode", distribution.mode,
                     {{"single", Mode::single},
                      {"data-parallel", Mode::data_parallel},
                      {"distributed", Mode::distributed}},
                     "one device; one process and all its GPUs; a process each, under horarun");
  table.number("--accumulate,--batches-per-allreduce", distribution.accumulate, whole(1, 65536),
               "backward passes of one step");
  table.flag("--sync-bn,--sync-batch-norm", distribution.sync_batch_norm,
             "BatchNorm's statistics are those of all ranks' batches");
  table.flag("--zero", distribution.zero,
             "each rank keeps its share of the optimizer's state (ZeRO, stage 1)");
  table
      .flag("--fused-update", distribution.fused_update,
            "with --zero, on the CPU of one node: averages, update and the parameters' way to all "
            "ranks are one pass")
      ->needs("--zero");
  table.choice<GradientCompression>("--compression", distribution.compression,
                                    {{"none", GradientCompression::none},
                                     {"fp16", GradientCompression::float16},
                                     {"bf16", GradientCompression::bfloat16},
                                     {"top-k", GradientCompression::top_k},
                                     {"powersgd", GradientCompression::power_sgd}},
                                    "in what form gradients travel");
  table.choice<NonFinite>(
      "--non-finite", distribution.non_finite,
      {{"raise", NonFinite::raise}, {"skip", NonFinite::skip}, {"ignore", NonFinite::ignore}},
      "a NaN or an infinity in any rank's loss or gradients: the training ends and names it; all "
      "ranks leave the step out; nothing is checked");
}

void add_precision(const Table& table, TrainingOptions& options) {
  table.begin("Device and precision");
  PrecisionOptions& precision = options.precision;
  table.choice<DeviceChoice>(
      "--device", options.device,
      {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}},
      "cuda: each rank's GPU; auto: the GPUs where every rank has one");
  table.choice<Amp>("--amp", precision.amp,
                    {{"off", Amp::off}, {"fp16", Amp::float16}, {"bf16", Amp::bfloat16}},
                    "mixed precision: fp16 (on CUDA, with a scaled loss) or bf16; by autocast "
                    "unless --opt-level says O2");
  table.choice<std::optional<OptLevel>>(
      "--opt-level", precision.opt_level,
      {{"none", std::nullopt}, {"O0", OptLevel::O0}, {"O1", OptLevel::O1}, {"O2", OptLevel::O2}},
      "as in Apex: O0: float32; O1: autocast; O2: convolutions and linear layers in 16 bits, "
      "BatchNorm and master weights in float32; without --amp in fp16 with a scaled loss (bf16 on "
      "a CPU)");
  table.number("--loss-scale", precision.loss_scale, "dynamic", kPositive,
               "of fp16, O1 and O2: what the loss is multiplied by");
}

void add_results(const Table& table, TrainingOptions& options) {
  table.begin("Validation, checkpoints and output");
  table.flag("-e,--evaluate", options.validation.only, "validate once, and train nothing");
  table.number("--desired-acc", options.validation.desired_accuracy, "none",
               {1, 100, "a number from 1 to 100"},
               "top-1 in percent at which the training ends, and says how long it took");
  table.number("--eval-every", options.validation.every, kCounts,
               "epochs from one validation to the next; the last one is always validated");
  table
      .flag("--checkpoint-per-node", options.checkpoint.per_node,
            "the first rank of each node writes, for nodes that share no files")
      ->needs("--model-dir");
  table
      .number("--checkpoint-every", options.checkpoint.every_steps, kAnyWhole,
              "a checkpoint after so many steps, too; 0: after epochs only")
      ->needs("--model-dir");
  OutputOptions& output = options.output;
  table.number("-p,--print-freq", output.print_freq, kAnyWhole,
               "steps from one line to the next; 0: a line every ten seconds");
  table.choice<ProgressStyle>("--progress", output.progress,
                              {{"auto", ProgressStyle::automatic},
                               {"live", ProgressStyle::live},
                               {"plain", ProgressStyle::plain}},
                              "live: one line that changes; plain: a line now and then; auto: live "
                              "on a terminal, but for that of mpirun");
  table.text("--report", "FILE", output.report, "to write the results to, as JSON");
  table.text("--log-json", "FILE", output.logs.json,
             "to write the course of the training to, a JSON object a line, with --resume behind "
             "those that are there; see plot.py");
  table.text("--tensorboard", "FOLDER", output.logs.tensorboard, "for this run's event file");
  table.number("--log-every", output.logs.every, kCounts, "steps that become one entry of logs");
}

/// Throws CLI::ValidationError for options that do not go together, and completes what follows from
/// others.
void check_combinations(const CLI::App& app, TrainingOptions& options) {
  const auto given = [&app](const char* name) { return app.count(name) > 0; };
  const auto refuse_if = [](bool wrong, const char* option, const std::string& reason) {
    if (wrong) throw CLI::ValidationError(option, reason);
  };
  const OptimizerSettings& optimizer = options.optimizer;
  const ScheduleOptions& schedule = options.schedule;
  const DistributionOptions& distribution = options.distribution;
  const PrecisionOptions& precision = options.precision;
  const std::string& resume = options.checkpoint.resume;
  const std::string& network = options.network.architecture;
  if (!std::holds_alternative<ResNetShape>(find_architecture(network).shape)) {
    refuse_if(given("--stem"), "--stem", network + " has none; only ResNets have");
    refuse_if(options.network.width > 0, "--width",
              network + " has a fixed one; only ResNets have a choice");
    refuse_if(options.network.zero_init_residual, "--zero-init-residual",
              network + " has no residual blocks; only ResNets have");
    options.network.stem.reset();
  }
  refuse_if(!options.network.weights.empty() && !resume.empty() && resume != "auto", "--weights",
            "--resume " + resume + " loads weights, too; give one of them, or --resume auto");
  refuse_if(optimizer.nesterov && (optimizer.name != "sgd" || optimizer.momentum == 0),
            "--nesterov", "needs --opt sgd with --momentum above 0");
  for (const char* option : {"--lr-step-epochs", "--lr-gamma"}) {
    refuse_if(given(option) && schedule.decay != Decay::step, option, "needs --lr-schedule step");
  }
  const double warmup = schedule.warmup_epochs.value_or(0);
  refuse_if(warmup >= options.epochs, "--warmup-epochs",
            fmt::format("{} epochs; expected fewer than --epochs {}", warmup, options.epochs));

  refuse_if(distribution.zero && distribution.compression != GradientCompression::none, "--zero",
            "averages uncompressed; leave out --compression");
  refuse_if(distribution.sync_batch_norm && distribution.mode == Mode::data_parallel, "--sync-bn",
            "averages over processes, and --mode data-parallel has one; take --mode distributed");
  refuse_if(precision.opt_level == OptLevel::O0 && precision.amp != Amp::off, "--opt-level",
            "O0 is float32, and --amp names a 16-bit type; take O1 or O2");
  const bool scales_loss =
      precision.amp == Amp::float16 ||
      (precision.amp == Amp::off && precision.opt_level.value_or(OptLevel::O0) != OptLevel::O0);
  refuse_if(precision.loss_scale && !scales_loss, "--loss-scale",
            "needs float16: --amp fp16, or --opt-level O1 or O2 without --amp bf16");
  // The averages are never there as such: nothing but the update can have them.
  const bool fused = distribution.fused_update;
  refuse_if(fused && options.regularisation.clip_norm > 0, "--fused-update",
            "does not go with --clip-norm, which needs the averages before the update");
  refuse_if(fused && scales_loss, "--fused-update",
            "does not go with a scaled loss (float16), whose gradients are looked at before the "
            "update; take --amp bf16");
  refuse_if(fused && options.device == DeviceChoice::cuda, "--fused-update",
            "is for the CPU, and --device is cuda");

  refuse_if(resume == "auto" && options.checkpoint.folder.empty(), "--resume",
            "auto needs --model-dir");
  refuse_if(options.validation.only && options.network.weights.empty() && resume.empty(),
            "--evaluate", "needs weights: --weights FILE, or --resume");
  options.deterministic = options.deterministic || given("--seed");
  options.output.logs.append = !resume.empty();
}

}  // namespace

ParsedOptions parse_options(const Program& program, int argc, const char* const* argv) {
  TrainingOptions options = program.defaults;
  CLI::App app(program.summary, program.name);
  const Table table(app);
  add_first(table, program, options);
  add_data_and_network(table, options);
  add_optimizer(table, options);
  add_distribution(table, options.distribution);
  add_precision(table, options);
  add_results(table, options);
  // --resume without a value, as the last word or in front of another option.
  std::vector<const char*> words(argv, argv + argc);
  for (std::size_t i = 1; i < words.size(); ++i) {
    const bool alone = i + 1 == words.size() || words[i + 1][0] == '-';
    if (alone && std::string_view(words[i]) == "--resume") words[i] = "--resume=auto";
  }
  try {
    parse_words(app, argc, words.data());
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
