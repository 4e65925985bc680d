#include "examples/vision/train/arguments.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "examples/vision/train/program.h"

namespace vision {
namespace {

using testing::AllOf;
using testing::HasSubstr;

ParsedArguments parse(std::vector<const char*> words) {
  words.insert(words.begin(), "trainer");
  const Program program{.name = "trainer", .image_side = 32};
  return parse_arguments(program, static_cast<int>(words.size()), words.data());
}

TEST(Arguments, Defaults) {
  const auto parsed = parse({"--data", "folder"});
  ASSERT_TRUE(parsed.arguments.has_value()) << parsed.text;
  EXPECT_EQ(parsed.arguments->data, "folder");
  EXPECT_EQ(parsed.arguments->batch, 32);
  EXPECT_DOUBLE_EQ(parsed.arguments->momentum, 0.9);
  EXPECT_EQ(parsed.arguments->architecture, "resnet18");
  EXPECT_EQ(parsed.arguments->stem, Stem::cifar);
  EXPECT_EQ(parsed.arguments->device, DeviceChoice::automatic);
  EXPECT_EQ(parsed.arguments->amp, Amp::off);
  EXPECT_FALSE(parsed.arguments->channels_last);
  EXPECT_EQ(parsed.arguments->workers, 1);
  EXPECT_EQ(parsed.arguments->limit, 0U);
  EXPECT_EQ(parsed.arguments->report, "");
  EXPECT_EQ(parsed.arguments->save, "");
  EXPECT_EQ(parsed.arguments->logs.json, "");
  EXPECT_EQ(parsed.arguments->logs.tensorboard, "");
  EXPECT_EQ(parsed.arguments->progress, ProgressStyle::automatic);
}

TEST(Arguments, EveryOption) {
  const auto parsed = parse({"--data=d",
                             "--epochs",
                             "7",
                             "--batch",
                             "16",
                             "--lr",
                             "0.25",
                             "--momentum",
                             "0.5",
                             "--weight-decay",
                             "1e-3",
                             "--seed",
                             "18446744073709551615",
                             "--arch",
                             "resnet50",
                             "--stem",
                             "imagenet",
                             "--device",
                             "cuda",
                             "--amp",
                             "bf16",
                             "--channels-last",
                             "--workers",
                             "0",
                             "--limit",
                             "256",
                             "--report",
                             "r.json",
                             "--log-json",
                             "l.json",
                             "--tensorboard",
                             "events",
                             "--save",
                             "m.pt",
                             "--progress",
                             "plain"});
  ASSERT_TRUE(parsed.arguments.has_value()) << parsed.text;
  const Arguments& arguments = *parsed.arguments;
  EXPECT_EQ(arguments.epochs, 7);
  EXPECT_EQ(arguments.batch, 16);
  EXPECT_DOUBLE_EQ(arguments.learning_rate, 0.25);
  EXPECT_DOUBLE_EQ(arguments.momentum, 0.5);
  EXPECT_DOUBLE_EQ(arguments.weight_decay, 1e-3);
  EXPECT_EQ(arguments.seed, 18446744073709551615U);
  EXPECT_EQ(arguments.architecture, "resnet50");
  EXPECT_EQ(arguments.stem, Stem::imagenet);
  EXPECT_EQ(arguments.device, DeviceChoice::cuda);
  EXPECT_EQ(arguments.amp, Amp::bfloat16);
  EXPECT_TRUE(arguments.channels_last);
  EXPECT_EQ(arguments.workers, 0);
  EXPECT_EQ(arguments.limit, 256U);
  EXPECT_EQ(arguments.report, "r.json");
  EXPECT_EQ(arguments.save, "m.pt");
  EXPECT_EQ(arguments.logs.json, "l.json");
  EXPECT_EQ(arguments.logs.tensorboard, "events");
  EXPECT_EQ(arguments.progress, ProgressStyle::plain);
}

TEST(Arguments, HelpNamesEveryOptionWithItsDefault) {
  const auto parsed = parse({"--help"});
  EXPECT_FALSE(parsed.arguments.has_value());
  EXPECT_EQ(parsed.exit_code, 0);
  const Arguments defaults;
  for (const std::string text :
       {"--data TEXT REQUIRED", "--batch INT:INT in [2 - 65536]=32", "--momentum FLOAT=0.9",
        "--weight-decay FLOAT=0.0005", "--seed UINT=1", "--limit UINT=0"}) {
    EXPECT_THAT(parsed.text, HasSubstr(text));
  }
  EXPECT_THAT(parsed.text, HasSubstr("=" + std::to_string(defaults.epochs)));
  for (const std::string option :
       {"--arch", "--lr", "--stem", "--report", "--save", "--progress"}) {
    EXPECT_THAT(parsed.text, testing::ContainsRegex(option + " [^\n]*=[a-z0-9.]+"));
  }
}

struct Wrong {
  std::vector<const char*> words;
  const char* named;  ///< what the message must name
};
class WrongArguments : public testing::TestWithParam<Wrong> {};

TEST_P(WrongArguments, IsRefusedByName) {
  const auto parsed = parse(GetParam().words);
  EXPECT_FALSE(parsed.arguments.has_value());
  EXPECT_EQ(parsed.exit_code, 2);
  EXPECT_THAT(parsed.text, HasSubstr(GetParam().named));
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongArguments,
    testing::Values(Wrong{{}, "--data"}, Wrong{{"--data", "d", "--epochs", "0"}, "--epochs"},
                    Wrong{{"--data", "d", "--epochs", "ten"}, "--epochs"},
                    Wrong{{"--data", "d", "--epochs", "2.5"}, "--epochs"},
                    Wrong{{"--data", "d", "--batch", "1"}, "--batch"},
                    Wrong{{"--data", "d", "--lr", "-0.1"}, "--lr"},
                    Wrong{{"--data", "d", "--lr", "nan"}, "--lr"},
                    Wrong{{"--data", "d", "--lr", "inf"}, "--lr"},
                    Wrong{{"--data", "d", "--lr", "0.1x"}, "--lr"},
                    Wrong{{"--data", "d", "--momentum", "1"}, "--momentum"},
                    Wrong{{"--data", "d", "--weight-decay", "-1"}, "--weight-decay"},
                    Wrong{{"--data", "d", "--workers", "-1"}, "--workers"},
                    Wrong{{"--data", "d", "--seed", "-1"}, "--seed"},
                    Wrong{{"--data", "d", "--seed", "18446744073709551616"}, "--seed"},
                    Wrong{{"--data", "d", "--limit", "-5"}, "--limit"},
                    Wrong{{"--data", "d", "--stem", "resnet"}, "--stem"},
                    Wrong{{"--data", "d", "-a", "resnet19"}, "one of resnet18, resnet34"},
                    Wrong{{"--data", "d", "-a", "alexnet"}, "alexnet needs images of 63x63"},
                    Wrong{{"--data", "d", "-a", "vgg11", "--stem", "cifar"}, "vgg11 has none"},
                    Wrong{{"--data", "d", "--device", "gpu"}, "--device"},
                    Wrong{{"--data", "d", "--amp", "fp8"}, "--amp"},
                    Wrong{{"--data", "d", "--epoch", "3"}, "--epoch"},
                    Wrong{{"--data", "d", "--resume", "auto"}, "auto needs --model-dir"},
                    Wrong{{"--data", "d", "leftover"}, "leftover"}));

// A value that is missing is not what the next option is called.
INSTANTIATE_TEST_SUITE_P(
    WithoutValue, WrongArguments,
    testing::Values(Wrong{{"--data=", "--channels-last"}, "--data: a value is missing"},
                    Wrong{{"--data", "--channels-last"}, "--data: a value is missing"},
                    Wrong{{"--data", ""}, "--data: a value is missing"},
                    Wrong{{"--data", "d", "--report"}, "--report: a value is missing"},
                    Wrong{{"--data", "d", "--report", "--save=s"}, "--report: a value is missing"},
                    Wrong{{"--data", "d", "--save=", "s"}, "--save: a value is missing"},
                    Wrong{{"--data", "d", "--epochs=", "3"}, "--epochs: a value is missing"}));

TEST(Arguments, AnArchitectureWithoutAStemHasNone) {
  const auto parsed = parse({"--data", "d", "-a", "vgg11_bn"});
  ASSERT_TRUE(parsed.arguments.has_value()) << parsed.text;
  EXPECT_EQ(parsed.arguments->architecture, "vgg11_bn");
  EXPECT_FALSE(parsed.arguments->stem.has_value());
}

TEST(Arguments, AValueAfterAnEqualsSignMayBeginAsAnOptionDoes) {
  const auto parsed = parse({"--data=--d", "--lr", "0.5"});
  ASSERT_TRUE(parsed.arguments.has_value()) << parsed.text;
  EXPECT_EQ(parsed.arguments->data, "--d");
}

}  // namespace
}  // namespace vision
