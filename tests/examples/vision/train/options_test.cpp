#include "examples/vision/train/options.h"

#include <gmock/gmock.h>

#include <functional>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace vision {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Words = std::vector<const char*>;

// Images of 32x32, for which AlexNet is too large.
ParsedOptions parse(Words words, const TrainingOptions& defaults = {}) {
  const Program program{.name = "small",
                        .summary = "Trains.",
                        .data = "a folder",
                        .image_side = 32,
                        .source = "fetch.sh downloads it",
                        .defaults = defaults};
  words.insert(words.begin(), "small");
  return parse_options(program, static_cast<int>(words.size()), words.data());
}

ParsedOptions parse_beside_data(Words words, const TrainingOptions& defaults = {}) {
  words.insert(words.begin(), {"--data", "d"});
  return parse(std::move(words), defaults);
}

/// Words, and what they must set.
struct Row {
  Words words;
  std::function<bool(const TrainingOptions&)> is_set;
};

#define SETS(...) [](const TrainingOptions& o) { return __VA_ARGS__; }

const std::vector<Row> rows{
    {{"-b", "16"}, SETS(o.data.batch == 16)},
    {{"--batch", "16"}, SETS(o.data.batch == 16)},
    {{"--batch-size=65536"}, SETS(o.data.batch == 65536)},
    {{"-j", "0"}, SETS(o.data.workers == 0)},
    {{"--workers", "4"}, SETS(o.data.workers == 4)},
    {{"--limit", "256"}, SETS(o.data.limit == 256)},
    {{"--bad-images", "skip"}, SETS(o.data.bad_images == BadImages::skip)},
    {{"-a", "resnet50"}, SETS(o.network.architecture == "resnet50" && !o.network.stem)},
    {{"--arch", "vgg11_bn"}, SETS(o.network.architecture == "vgg11_bn")},
    {{"--stem", "cifar"}, SETS(o.network.stem == Stem::cifar)},
    {{"--stem", "imagenet"}, SETS(o.network.stem == Stem::imagenet)},
    {{"--width", "32"}, SETS(o.network.width == 32)},
    {{"--zero-init-residual"}, SETS(o.network.zero_init_residual)},
    {{"--weights", "w"}, SETS(o.network.weights == "w")},
    {{"--pretrained", "w"}, SETS(o.network.weights == "w")},
    {{"--channels-last"}, SETS(o.network.channels_last)},
    {{"--opt", "adam"}, SETS(o.optimizer.name == "adam")},
    {{"--optimizer", "adamw"}, SETS(o.optimizer.name == "adamw")},
    {{"--lr", "0.25"}, SETS(o.optimizer.learning_rate == 0.25)},
    {{"--learning-rate", "1e-3"}, SETS(o.optimizer.learning_rate == 1e-3)},
    {{"--momentum", "0"}, SETS(o.optimizer.momentum == 0)},
    {{"--nesterov"}, SETS(o.optimizer.nesterov)},
    {{"--wd", "1e-3"}, SETS(o.optimizer.weight_decay == 1e-3)},
    {{"--weight-decay", "0"}, SETS(o.optimizer.weight_decay == 0)},
    {{"--no-norm-decay"}, SETS(!o.optimizer.decay_all)},
    {{"--lr-scheduler", "steplr", "--lr-gamma", "1"},
     SETS(o.schedule.decay == Decay::step && o.schedule.factor == 1)},
    {{"--model-dir", "m", "--resume"}, SETS(o.checkpoint.resume == "auto")},
    {{"--resume", "-b", "8", "--model-dir=m"},
     SETS(o.checkpoint.resume == "auto" && o.checkpoint.folder == "m")},
    {{"--epochs", "7"}, SETS(o.epochs == 7)},
    {{"--num-epochs", "7"}, SETS(o.epochs == 7)},
    {{"--num_epochs=3", "--num_epochs", "7"}, SETS(o.epochs == 7)},  // the last one holds
    {{"--batch_size=3", "--batch_size=8"}, SETS(o.data.batch == 8)},
    {{"--learning_rate", ".5", "--lr", "2"}, SETS(o.optimizer.learning_rate == 2)},
    {{"--model_dir=m_d"}, SETS(o.checkpoint.folder == "m_d")},
    {{"--random_seed", "7"}, SETS(o.seed == 7 && o.deterministic)},
    {{"--random-seed", "7"}, SETS(o.seed == 7)},
    {{"--zero", "--zero"}, SETS(o.distribution.zero)},
    {{"--lr-schedule", "cosine"}, SETS(o.schedule.decay == Decay::cosine)},
    {{"--lr-scheduler", "constant"}, SETS(o.schedule.decay == Decay::constant)},
    {{"--lr-scheduler", "cosineannealinglr"}, SETS(o.schedule.decay == Decay::cosine)},
    {{"--lr-step-epochs", "2.5"}, SETS(o.schedule.step_epochs == 2.5)},
    {{"--lr-step-size", "10"}, SETS(o.schedule.step_epochs == 10)},
    {{"--warmup-epochs", "5"}, SETS(o.schedule.warmup_epochs == 5)},
    {{"--lr-warmup-epochs", "0"}, SETS(o.schedule.warmup_epochs == 0)},
    {{"--scale-lr"}, SETS(o.schedule.scale&& o.schedule.base_batch == 0)},
    {{"--scale-lr", "--base-batch", "256"}, SETS(o.schedule.base_batch == 256)},
    {{"--label-smoothing", "0.1"}, SETS(o.regularisation.label_smoothing == 0.1)},
    {{"--clip-norm", "1"}, SETS(o.regularisation.clip_norm == 1)},
    {{"--clip-grad-norm", "2"}, SETS(o.regularisation.clip_norm == 2)},
    {{"--mode", "single"}, SETS(o.distribution.mode == Mode::single)},
    {{"--mode", "data-parallel"}, SETS(o.distribution.mode == Mode::data_parallel)},
    {{"--mode", "distributed"}, SETS(o.distribution.mode == Mode::distributed)},
    {{"--accumulate", "4"}, SETS(o.distribution.accumulate == 4)},
    {{"--batches-per-allreduce", "2"}, SETS(o.distribution.accumulate == 2)},
    {{"--sync-bn"}, SETS(o.distribution.sync_batch_norm)},
    {{"--sync-batch-norm"}, SETS(o.distribution.sync_batch_norm)},
    {{"--zero"}, SETS(o.distribution.zero && !o.distribution.fused_update)},
    {{"--fused-update", "--zero"}, SETS(o.distribution.zero&& o.distribution.fused_update)},
    {{"--compression", "fp16"}, SETS(o.distribution.compression == GradientCompression::float16)},
    {{"--compression", "bf16"}, SETS(o.distribution.compression == GradientCompression::bfloat16)},
    {{"--compression", "top-k"}, SETS(o.distribution.compression == GradientCompression::top_k)},
    {{"--compression", "powersgd"},
     SETS(o.distribution.compression == GradientCompression::power_sgd)},
    {{"--non-finite", "skip"}, SETS(o.distribution.non_finite == NonFinite::skip)},
    {{"--non-finite", "ignore"}, SETS(o.distribution.non_finite == NonFinite::ignore)},
    {{"--device", "cuda"}, SETS(o.device == DeviceChoice::cuda)},
    {{"--device", "cpu"}, SETS(o.device == DeviceChoice::cpu)},
    {{"--amp", "fp16"}, SETS(o.precision.amp == Amp::float16)},
    {{"--amp", "bf16"}, SETS(o.precision.amp == Amp::bfloat16)},
    {{"--opt-level", "O0"}, SETS(o.precision.opt_level == OptLevel::O0)},
    {{"--opt-level", "O1"}, SETS(o.precision.opt_level == OptLevel::O1)},
    {{"--opt-level", "O2", "--loss-scale", "128"},
     SETS(o.precision.opt_level == OptLevel::O2 && o.precision.loss_scale == 128)},
    {{"--amp", "fp16", "--loss-scale", "dynamic"}, SETS(!o.precision.loss_scale)},
    {{"-e", "--weights", "w"}, SETS(o.validation.only)},
    {{"--evaluate", "--resume", "f"}, SETS(o.validation.only)},
    {{"--desired-acc", "75.9"}, SETS(o.validation.desired_accuracy == 75.9)},
    {{"--eval-every", "5"}, SETS(o.validation.every == 5)},
    {{"--model-dir", "m"}, SETS(o.checkpoint.folder == "m")},
    {{"--resume", "f"}, SETS(o.checkpoint.resume == "f" && o.output.logs.append)},
    {{"--resume", "auto", "--model-dir", "m"}, SETS(o.checkpoint.resume == "auto")},
    {{"--checkpoint-per-node", "--model-dir", "m"}, SETS(o.checkpoint.per_node)},
    {{"--checkpoint-every", "100", "--model-dir", "m"}, SETS(o.checkpoint.every_steps == 100)},
    {{"--seed", "18446744073709551615"}, SETS(o.seed == 18446744073709551615U && o.deterministic)},
    {{"-p", "10"}, SETS(o.output.print_freq == 10)},
    {{"--print-freq", "100"}, SETS(o.output.print_freq == 100)},
    {{"--progress", "plain"}, SETS(o.output.progress == ProgressStyle::plain)},
    {{"--progress", "live"}, SETS(o.output.progress == ProgressStyle::live)},
    {{"--report", "r"}, SETS(o.output.report == "r")},
    {{"--save", "s"}, SETS(o.output.save == "s")},
    {{"--log-json", "l"}, SETS(o.output.logs.json == "l")},
    {{"--tensorboard", "t"}, SETS(o.output.logs.tensorboard == "t")},
    {{"--log-every", "1"}, SETS(o.output.logs.every == 1)},
};
#undef SETS

TEST(Options, DefaultsAreTheProgramsOwn) {
  TrainingOptions defaults;
  defaults.epochs = 17;
  defaults.network.stem = Stem::cifar;
  defaults.optimizer.decay_all = true;
  const auto parsed = parse_beside_data({}, defaults);
  ASSERT_TRUE(parsed.options.has_value()) << parsed.text;
  EXPECT_EQ(parsed.options->data.path, "d");
  EXPECT_EQ(parsed.options->epochs, 17);
  EXPECT_EQ(parsed.options->network.stem, Stem::cifar);
  EXPECT_TRUE(parsed.options->optimizer.decay_all);
  EXPECT_FALSE(parsed.options->deterministic);
  // A default stem is of ResNets only.
  EXPECT_FALSE(parse_beside_data({"-a", "vgg11"}, defaults).options->network.stem.has_value());
}

TEST(Options, EachSetsItsField) {
  TrainingOptions defaults;
  defaults.optimizer.decay_all = true;
  for (const Row& row : rows) {
    const std::string words = testing::PrintToString(row.words);
    EXPECT_FALSE(row.is_set(defaults)  // else the row would show nothing
                 && words.find("distributed") == std::string::npos &&
                 words.find("dynamic") == std::string::npos)
        << words;
    const auto parsed = parse_beside_data(row.words, defaults);
    ASSERT_TRUE(parsed.options.has_value()) << words << parsed.text;
    EXPECT_TRUE(row.is_set(*parsed.options)) << words;
  }
}

TEST(Options, EachNameThatHelpListsIsTested) {
  std::string tested = " --help= -h= --data=";
  for (const Row& row : rows) {
    for (const char* word : row.words) tested += std::string(" ") + word + "=";
  }
  const std::string help = parse({"--help"}).text;
  const std::regex row("\n  (-[^ {]*)");
  std::size_t names = 0;
  for (std::sregex_iterator line(help.begin(), help.end(), row), end; line != end; ++line) {
    std::istringstream column((*line)[1]);
    for (std::string name; std::getline(column, name, ','); ++names) {
      EXPECT_THAT(tested, HasSubstr(" " + name + "="));
    }
  }
  EXPECT_GT(names, 60U) << help;
}

TEST(Options, HelpBeginsWithTheFirstRunAndShowsTheProgramsDefaults) {
  TrainingOptions defaults;
  defaults.data.batch = 48;
  defaults.optimizer.learning_rate = 1e-5;
  defaults.schedule.warmup_share = 1.0 / 8;
  defaults.output.progress = ProgressStyle::live;
  const auto parsed = parse({"--help"}, defaults);
  EXPECT_FALSE(parsed.options.has_value());
  EXPECT_EQ(parsed.exit_code, 0);
  std::size_t at = 0;
  for (const std::string text :
       {"Trains.", "--data PATH REQUIRED", "-a,--arch NAME=resnet18", "--epochs,--num-epochs N=90",
        "-b,--batch,--batch-size N=48", "--lr,--learning-rate X=1e-05", "--seed,--random-seed N=1",
        "-j,--workers N=1", "--model-dir FOLDER=none", "--resume [auto|FOLDER]=none",
        "--save FILE=none", "Data and network:"}) {
    EXPECT_NE(parsed.text.find(text, at), std::string::npos) << text << "\nin " << parsed.text;
    at = parsed.text.find(text);
  }
  for (const std::string text : {"--momentum X=0.9", "--device auto|cpu|cuda=auto", "12.5 %",
                                 "--warmup-epochs,--lr-warmup-epochs X=auto", "--report FILE=none",
                                 "--progress auto|live|plain=live", "--loss-scale X=dynamic",
                                 "--desired-acc X=none", "--opt,--optimizer sgd|adam|adamw=sgd"}) {
    EXPECT_THAT(parsed.text, HasSubstr(text));
  }
}

TEST(Options, RefuseWhatIsWrongAndSayWhatWasExpected) {
  struct Wrong {
    Words words;        ///< beside --data d
    const char* named;  ///< what the message must say
  };
  const std::vector<Wrong> all{
      {{"--epochs", "0"}, "--epochs: '0' is not a whole number from 1 to 1000000"},
      {{"--epochs", "ten"}, "--epochs"},
      {{"--epochs", "2.5"}, "'2.5' is not a whole number"},
      {{"-b", "1"}, "'1' is not a whole number from 2 to 65536"},
      {{"--batch", "65537"}, "--batch"},
      {{"--lr", "-0.1"}, "--lr: '-0.1' is not a number of 0 or more"},
      {{"--lr", "nan"}, "--lr"},
      {{"--lr", "inf"}, "--lr"},
      {{"--lr", "1e999"}, "--lr"},
      {{"--lr", "0.1x"}, "--lr"},
      {{"--momentum", "1"}, "'1' is not a number from 0 to below 1"},
      {{"--wd", "-1"}, "--wd"},
      {{"-j", "-1"}, "'-1' is not a whole number from 0 to 1024"},
      {{"--seed", "-1"}, "'-1' is not a whole number from 0 to 2^64 - 1"},
      {{"--seed", "18446744073709551616"}, "--seed"},
      {{"--limit", "-5"}, "--limit"},
      {{"--bad-images", "drop"}, "'drop' is not one of raise, skip"},
      {{"--width", "4097"}, "'4097' is not a whole number from 0 to 4096"},
      {{"--stem", "resnet"}, "'resnet' is not one of cifar, imagenet"},
      {{"-a", "resnet19"}, "one of resnet18, resnet34"},
      {{"-a", "alexnet"}, "alexnet needs images of 63x63 pixels and more, and gets 32x32"},
      {{"--opt", "rmsprop"}, "'rmsprop' is not one of sgd, adam, adamw"},
      {{"--lr-schedule", "linear"}, "'linear' is not one of step, cosine, constant"},
      {{"--lr-step-epochs", "0"}, "'0' is not a number above 0"},
      {{"--lr-gamma", "1.5"}, "'1.5' is not a number above 0 to 1"},
      {{"--lr-gamma", "0"}, "--lr-gamma"},
      {{"--warmup-epochs", "-1"}, "--warmup-epochs"},
      {{"--scale-lr", "--base-batch", "0"}, "--base-batch"},
      {{"--label-smoothing", "1"}, "--label-smoothing"},
      {{"--clip-norm", "-1"}, "--clip-norm"},
      {{"--clip-norm", "inf"}, "--clip-norm"},
      {{"--mode", "ddp"}, "'ddp' is not one of single, data-parallel, distributed"},
      {{"--accumulate", "0"}, "--accumulate"},
      {{"--compression", "fp8"}, "'fp8' is not one of none, fp16, bf16, top-k, powersgd"},
      {{"--non-finite", "drop"}, "'drop' is not one of raise, skip, ignore"},
      {{"--device", "gpu"}, "'gpu' is not one of auto, cpu, cuda"},
      {{"--amp", "fp8"}, "'fp8' is not one of off, fp16, bf16"},
      {{"--opt-level", "O3"}, "'O3' is not one of none, O0, O1, O2"},
      {{"--amp", "fp16", "--loss-scale", "0"}, "'0' is not a number above 0, or dynamic"},
      {{"--desired-acc", "0.93"}, "'0.93' is not a number from 1 to 100"},
      {{"--desired-acc", "101"}, "--desired-acc"},
      {{"--eval-every", "0"}, "--eval-every"},
      {{"--checkpoint-every", "-1"}, "--checkpoint-every"},
      {{"-p", "-1"}, "--print-freq"},
      {{"--progress", "bar"}, "'bar' is not one of auto, live, plain"},
      {{"--log-every", "0"}, "--log-every"},
      {{"--epoch", "3"}, "--epoch: unknown option; did you mean --epochs?\n"},
      {{"--weight_dec=1", "--colour"},
       "--weight-dec=1: unknown option; did you mean --weight-decay?"},
      {{"--elephants"}, "--elephants: unknown option\n"},
      {{"left", "over", "--", "-x"}, "left: not expected\n"},
      {{"-a", "vgg11", "--stem", "cifar"}, "--stem: vgg11 has none"},
      {{"-a", "vgg11", "--width", "32"}, "--width: vgg11 has a fixed one"},
      {{"-a", "vgg11", "--zero-init-residual"}, "--zero-init-residual: vgg11 has no"},
      {{"--weights", "w", "--resume", "f"}, "--weights: --resume f loads weights, too"},
      {{"--nesterov", "--opt", "adam"}, "--nesterov: needs --opt sgd"},
      {{"--nesterov", "--momentum", "0"}, "--nesterov: needs --opt sgd with --momentum above 0"},
      {{"--lr-step-epochs", "3", "--lr-schedule", "cosine"},
       "--lr-step-epochs: needs --lr-schedule step"},
      {{"--lr-gamma", ".5", "--lr-schedule", "constant"}, "--lr-gamma: needs --lr-schedule step"},
      {{"--base-batch", "256"}, "--base-batch requires --scale-lr"},
      {{"--warmup-epochs", "5", "--epochs", "5"}, "expected fewer than --epochs 5"},
      {{"--zero", "--compression", "bf16"}, "--zero: averages uncompressed"},
      {{"--zero", "--compression", "top-k"}, "--zero: averages uncompressed"},
      {{"--fused-update"}, "--fused-update requires --zero"},
      {{"--fused-update", "--zero", "--clip-norm", "1"},
       "--fused-update: does not go with --clip-norm"},
      {{"--fused-update", "--zero", "--amp", "fp16"}, "--fused-update: does not go with a scaled"},
      {{"--fused-update", "--zero", "--opt-level", "O2"},
       "--fused-update: does not go with a scaled"},
      {{"--fused-update", "--zero", "--device", "cuda"}, "--fused-update: is for the CPU"},
      {{"--sync-bn", "--mode", "data-parallel"}, "--sync-bn: averages over processes"},
      {{"--opt-level", "O0", "--amp", "bf16"}, "--opt-level: O0 is float32, and --amp names"},
      {{"--loss-scale", "128", "--opt-level", "O2", "--amp", "bf16"},
       "--loss-scale: needs float16"},
      {{"--loss-scale", "128"}, "--loss-scale: needs float16"},
      {{"--loss-scale", "128", "--amp", "bf16"}, "--loss-scale: needs float16"},
      {{"--loss-scale", "128", "--opt-level", "O0"}, "--loss-scale: needs float16"},
      {{"--resume", "auto"}, "--resume: auto needs --model-dir"},
      {{"--checkpoint-per-node"}, "--checkpoint-per-node requires --model-dir"},
      {{"--checkpoint-every", "5"}, "--checkpoint-every requires --model-dir"},
      {{"--evaluate"}, "--evaluate: needs weights"},
      {{"--report"}, "--report: a value is missing"},
      {{"--report", "--save=s"}, "--report: a value is missing"},
      {{"--save=", "s"}, "--save: a value is missing"},
      {{"--epochs=", "3"}, "--epochs: a value is missing"},
      {{"-b", "--channels-last"}, "-b: a value is missing"},
      {{"--resume"}, "--resume: auto needs --model-dir"},
      {{"--resume=", "f"}, "--resume: a value is missing"},
  };
  for (const Wrong& wrong : all) {
    const auto parsed = parse_beside_data(wrong.words);
    EXPECT_FALSE(parsed.options.has_value()) << testing::PrintToString(wrong.words);
    EXPECT_EQ(parsed.exit_code, 2);
    EXPECT_THAT(parsed.text, AllOf(HasSubstr(wrong.named), Not(HasSubstr("fetch.sh"))));
  }
}

TEST(Options, TheDataIsMissing) {
  for (const Words& words : {Words{"--data=", "--channels-last"}, Words{"--data", "--zero"},
                             Words{"--data", ""}, Words{"--data"}}) {
    EXPECT_THAT(parse(words).text, HasSubstr("--data: a value is missing"));
  }
  EXPECT_THAT(parse({"--epochs", "3"}).text,
              AllOf(HasSubstr("--data is required"), HasSubstr("fetch.sh downloads")));
}

TEST(Options, TheDataMayStandByItselfAndBeginAsAnOptionDoes) {
  EXPECT_EQ(parse({"-a", "resnet50", "-b", "64", "folder"}).options->data.path, "folder");
  EXPECT_EQ(parse({"--data=--d", "--lr", "0.5"}).options->data.path, "--d");
}

}  // namespace
}  // namespace vision
