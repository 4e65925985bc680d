#include "examples/vision/train/option_table.h"

#include <gmock/gmock.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/examples/vision/train/small_program.h"

namespace vision {
namespace {

using test::expect_refused;
using test::parse;
using test::parse_beside_data;
using test::program;
using test::Words;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(OptionTable, DefaultsAreTheProgramsOwn) {
  TrainingOptions defaults;
  defaults.epochs = 17;
  defaults.network.stem = Stem::cifar;
  defaults.optimizer.decay_all = true;
  defaults.output.print_freq = 10;
  const auto parsed = parse_beside_data({}, defaults);
  ASSERT_TRUE(parsed.options.has_value()) << parsed.text;
  EXPECT_EQ(parsed.options->data.path, "d");
  EXPECT_EQ(parsed.options->epochs, 17);
  EXPECT_EQ(parsed.options->network.stem, Stem::cifar);
  EXPECT_TRUE(parsed.options->optimizer.decay_all);
  EXPECT_EQ(parsed.options->output.print_freq, 10U);
  EXPECT_FALSE(parsed.options->deterministic);
}

/// Words, what they must set, and which default shows in --help where the words are one option.
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
    {{"--opt", "lamb"}, SETS(o.optimizer.name == "lamb")},
    {{"--optimizer", "adamw"}, SETS(o.optimizer.name == "adamw")},
    {{"--lr", "0.25"}, SETS(o.optimizer.learning_rate == 0.25)},
    {{"--learning-rate", "1e-3"}, SETS(o.optimizer.learning_rate == 1e-3)},
    {{"--momentum", "0"}, SETS(o.optimizer.momentum == 0)},
    {{"--nesterov"}, SETS(o.optimizer.nesterov)},
    {{"--wd", "1e-3"}, SETS(o.optimizer.weight_decay == 1e-3)},
    {{"--weight-decay", "0"}, SETS(o.optimizer.weight_decay == 0)},
    {{"--no-norm-decay"}, SETS(!o.optimizer.decay_all)},
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
    {{"--lr-gamma", "1"}, SETS(o.schedule.factor == 1)},
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
    {{"--adasum"}, SETS(o.distribution.adasum)},
    {{"--use-adasum"}, SETS(o.distribution.adasum)},
    {{"--compression", "fp16"}, SETS(o.distribution.compression == GradientCompression::float16)},
    {{"--compression", "bf16"}, SETS(o.distribution.compression == GradientCompression::bfloat16)},
    {{"--compression", "top-k", "--top-k-share", ".5"},
     SETS(o.distribution.compression == GradientCompression::top_k &&
          o.distribution.top_k_share == .5)},
    {{"--compression", "powersgd", "--powersgd-rank", "4"},
     SETS(o.distribution.compression == GradientCompression::power_sgd &&
          o.distribution.power_sgd_rank == 4)},
    {{"--gradient-predivide-factor", "2"}, SETS(o.distribution.predivide == 2)},
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

TrainingOptions all_decayed() {
  TrainingOptions options;
  options.optimizer.decay_all = true;
  return options;
}

TEST(OptionTable, EveryOptionSetsItsField) {
  const TrainingOptions defaults = all_decayed();
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

TEST(OptionTable, EveryNameThatHelpListsIsTested) {
  std::string tested = "-h --help --data";
  for (const Row& row : rows) {
    for (const char* word : row.words) tested += std::string(" ") + word + "=";
  }
  const std::string help = parse({"--help"}).text;
  std::size_t names = 0;
  for (std::size_t begin = help.find("\n  -"); begin != std::string::npos;
       begin = help.find("\n  -", begin + 1)) {
    const std::string column = help.substr(begin + 3, help.find(' ', begin + 3) - begin - 3);
    for (std::size_t at = 0; at < column.size(); at = column.find(',', at) + 1) {
      const std::string name = column.substr(at, column.find_first_of(",{", at) - at);
      EXPECT_THAT(tested, HasSubstr(name.starts_with("-h") || name == "--help" || name == "--data"
                                        ? name
                                        : " " + name + "="));
      ++names;
      if (column.find(',', at) == std::string::npos) break;
    }
  }
  EXPECT_GT(names, 60U) << help;
}

TEST(OptionTable, HelpShowsTheProgramsDefaults) {
  TrainingOptions defaults;
  defaults.data.batch = 48;
  defaults.optimizer.learning_rate = 1e-5;
  defaults.schedule.warmup_share = 1.0 / 8;
  defaults.output.progress = ProgressStyle::live;
  const auto parsed = parse({"--help"}, defaults);
  EXPECT_FALSE(parsed.options.has_value());
  EXPECT_EQ(parsed.exit_code, 0);
  for (const std::string text :
       {"Trains.", "--data PATH REQUIRED", "a folder", "-b,--batch,--batch-size N=48",
        "--lr,--learning-rate X=1e-05", "--momentum X=0.9", "--device auto|cpu|cuda=auto",
        "--warmup-epochs,--lr-warmup-epochs X=auto", "12.5 %", "--report FILE=none",
        "--progress auto|live|plain=live", "--loss-scale X=dynamic", "--desired-acc X=none",
        "--lr-schedule,--lr-scheduler step|cosine|constant|steplr|cosineannealinglr=step",
        "--opt,--optimizer NAME=sgd", "-a,--arch NAME=resnet18", "--opt-level none|O0|O1|O2=none",
        "--seed,--random-seed N=1"}) {
    EXPECT_THAT(parsed.text, HasSubstr(text));
  }
}

TEST(OptionTable, RefusesValuesWithWhatWasExpected) {
  expect_refused({
      {{"--epochs", "0"}, "--epochs: '0' is not a whole number from 1 to 1000000"},
      {{"--epochs", "ten"}, "--epochs"},
      {{"--epochs", "2.5"}, "'2.5' is not a whole number"},
      {{"-b", "1"}, "'1' is not a whole number from 2 to 65536"},
      {{"--batch", "65537"}, "--batch"},
      {{"--lr", "-0.1"}, "--lr: '-0.1' is not a number of at least 0"},
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
      {{"--opt", "rmsprop"}, "'rmsprop' is not one of these: sgd"},
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
      {{"--compression", "top-k", "--top-k-share", "0"}, "--top-k-share"},
      {{"--compression", "powersgd", "--powersgd-rank", "0"}, "--powersgd-rank"},
      {{"--gradient-predivide-factor", "0"}, "--gradient-predivide-factor"},
      {{"--gradient-predivide-factor", "16385"}, "to 16384"},
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
      {{"--b", "208", "DATA"}, "--b: unknown option; did you mean -b?\n"},
      {{"--wieght_decay=1", "--colour"},
       "--wieght-decay=1: unknown option; did you mean --weight-decay?"},
      {{"--elephants"}, "--elephants: unknown option\n"},
      {{"left", "over", "--", "-x"}, "left: not expected\n"},
  });
}

TEST(OptionTable, AValueThatIsMissingIsNotTheNextOption) {
  expect_refused({
      {{"--report"}, "--report: a value is missing"},
      {{"--report", "--save=s"}, "--report: a value is missing"},
      {{"--save=", "s"}, "--save: a value is missing"},
      {{"--epochs=", "3"}, "--epochs: a value is missing"},
      {{"-b", "--channels-last"}, "-b: a value is missing"},
  });
  for (const Words& words : {Words{"--data=", "--channels-last"}, Words{"--data", "--zero"},
                             Words{"--data", ""}, Words{"--data"}}) {
    EXPECT_THAT(parse(words).text, HasSubstr("--data: a value is missing"));
  }
  EXPECT_THAT(parse({}).text, HasSubstr("--data is required"));
}

TEST(OptionTable, SchedulesHaveTorchsNames) {
  TrainingOptions defaults;
  defaults.schedule.decay = Decay::constant;
  const auto parsed = parse_beside_data({"--lr-scheduler", "steplr", "--lr-gamma", "1"}, defaults);
  ASSERT_TRUE(parsed.options.has_value()) << parsed.text;
  EXPECT_EQ(parsed.options->schedule.decay, Decay::step);
}

TEST(OptionTable, ResumeWithoutAValueIsAuto) {
  for (const Words& words :
       {Words{"--model-dir", "m", "--resume"}, Words{"--resume", "--model-dir", "m"},
        Words{"--resume", "-b", "8", "--model-dir=m"}}) {
    const auto parsed = parse_beside_data(words);
    ASSERT_TRUE(parsed.options.has_value()) << testing::PrintToString(words) << parsed.text;
    EXPECT_EQ(parsed.options->checkpoint.resume, "auto");
    EXPECT_EQ(parsed.options->checkpoint.folder, "m");
  }
  expect_refused({{{"--resume"}, "--resume: auto needs --model-dir"},
                  {{"--resume=", "f"}, "--resume: a value is missing"}});
}

TEST(OptionTable, WithoutDataItSaysWhereThereIsSome) {
  ProgramDescription described = program;
  described.source = "fetch.sh downloads it";
  const char* const words[] = {"small", "--epochs", "3"};
  const auto parsed = parse_options(described, {}, 3, words);
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_THAT(parsed.text, AllOf(HasSubstr("--data is required"), HasSubstr("fetch.sh downloads")));
  const char* const others[] = {"small", "--data", "d", "--epochs", "0"};
  EXPECT_THAT(parse_options(described, {}, 5, others).text, Not(HasSubstr("fetch.sh")));
}

TEST(OptionTable, AValueAfterAnEqualsSignMayBeginAsAnOptionDoes) {
  const auto parsed = parse({"--data=--d", "--lr", "0.5"});
  ASSERT_TRUE(parsed.options.has_value()) << parsed.text;
  EXPECT_EQ(parsed.options->data.path, "--d");
}

TEST(OptionTable, TheDataMayStandByItselfAsInTheImageNetExample) {
  const auto parsed = parse({"-a", "resnet50", "-b", "64", "folder"});
  ASSERT_TRUE(parsed.options.has_value()) << parsed.text;
  EXPECT_EQ(parsed.options->data.path, "folder");
}

}  // namespace
}  // namespace vision
