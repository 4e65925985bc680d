#include "examples/vision/train/option_checks.h"

#include <gtest/gtest.h>

#include "tests/examples/vision/train/small_program.h"

namespace vision {
namespace {

using test::expect_refused;
using test::parse_beside_data;

TEST(OptionChecks, RefusesWhatDoesNotGoTogether) {
  expect_refused({
      {{"-a", "vgg11", "--stem", "cifar"}, "--stem: vgg11 has none"},
      {{"-a", "vgg11", "--width", "32"}, "--width: vgg11 has a fixed one"},
      {{"-a", "vgg11", "--zero-init-residual"}, "--zero-init-residual: vgg11 has no"},
      {{"--weights", "w", "--resume", "f"}, "--weights: --resume f loads weights, too"},
      {{"--nesterov", "--opt", "adam"}, "--nesterov: adam has no"},
      {{"--nesterov", "--momentum", "0"}, "--nesterov: needs --momentum"},
      {{"--lr-step-epochs", "3", "--lr-schedule", "cosine"},
       "--lr-step-epochs: needs --lr-schedule step"},
      {{"--lr-gamma", ".5", "--lr-schedule", "constant"}, "--lr-gamma: needs --lr-schedule step"},
      {{"--base-batch", "256"}, "--base-batch: needs --scale-lr"},
      {{"--warmup-epochs", "5", "--epochs", "5"}, "expected fewer than --epochs 5"},
      {{"--zero", "--opt", "lars"}, "--zero: lars needs whole layers"},
      {{"--zero", "--opt", "lamb"}, "--zero: lamb needs whole layers"},
      {{"--zero", "--compression", "bf16"}, "--zero: averages uncompressed"},
      {{"--zero", "--compression", "top-k"}, "--zero: averages uncompressed"},
      {{"--adasum", "--zero"}, "--adasum: does not go with --zero"},
      {{"--fused-update"}, "--fused-update: needs --zero"},
      {{"--fused-update", "--zero", "--clip-norm", "1"},
       "--fused-update: does not go with --clip-norm"},
      {{"--fused-update", "--zero", "--amp", "fp16"}, "--fused-update: does not go with a scaled"},
      {{"--fused-update", "--zero", "--opt-level", "O2"},
       "--fused-update: does not go with a scaled"},
      {{"--fused-update", "--zero", "--device", "cuda"}, "--fused-update: is for the CPU"},
      {{"--adasum", "--gradient-predivide-factor", "2"}, "--adasum: does not average"},
      {{"--adasum", "--compression", "powersgd"}, "--adasum: goes with --compression none"},
      {{"--gradient-predivide-factor", "2", "--compression", "top-k"},
       "--gradient-predivide-factor: goes with --compression none"},
      {{"--top-k-share", ".1"}, "--top-k-share: needs --compression top-k"},
      {{"--powersgd-rank", "1"}, "--powersgd-rank: needs --compression powersgd"},
      {{"--sync-bn", "--mode", "data-parallel"}, "--sync-bn: averages over processes"},
      {{"--opt-level", "O0", "--amp", "bf16"}, "--opt-level: O0 is float32, and --amp names"},
      {{"--loss-scale", "128", "--opt-level", "O2", "--amp", "bf16"},
       "--loss-scale: needs float16"},
      {{"--loss-scale", "128"}, "--loss-scale: needs float16"},
      {{"--loss-scale", "128", "--amp", "bf16"}, "--loss-scale: needs float16"},
      {{"--loss-scale", "128", "--opt-level", "O0"}, "--loss-scale: needs float16"},
      {{"--resume", "auto"}, "--resume: auto needs --model-dir"},
      {{"--checkpoint-per-node"}, "--checkpoint-per-node: needs --model-dir"},
      {{"--checkpoint-every", "5"}, "--checkpoint-every: needs --model-dir"},
      {{"--evaluate"}, "--evaluate: needs weights"},
  });
}

TEST(OptionChecks, ADefaultStemIsOfResNetsOnly) {
  TrainingOptions defaults;
  defaults.network.stem = Stem::cifar;
  const auto resnet = parse_beside_data({"-a", "resnet50"}, defaults);
  const auto vgg = parse_beside_data({"-a", "vgg11_bn"}, defaults);
  ASSERT_TRUE(resnet.options && vgg.options) << vgg.text;
  EXPECT_EQ(resnet.options->network.stem, Stem::cifar);
  EXPECT_FALSE(vgg.options->network.stem.has_value());
}

}  // namespace
}  // namespace vision
