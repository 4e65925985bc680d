#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "examples/vision/train/program.h"
#include "tests/examples/vision/train/made_images.h"

namespace vision {
namespace {

using test::MadeImages;
using testing::HasSubstr;
using testing::Not;

TrainingOptions small_training() {
  TrainingOptions options;
  options.epochs = 8;
  options.data.batch = 16;
  options.data.workers = 0;
  options.network.architecture = "resnet20";
  options.optimizer = {.learning_rate = 0.05};
  options.schedule = {.decay = Decay::constant};
  return options;
}

Setup setup_of(const hora::Context& world, const TrainingOptions& options) {
  DataSets data;
  data.training = std::make_unique<MadeImages>(64 * static_cast<std::size_t>(world.size()));
  data.validation = std::make_unique<MadeImages>(30);
  hora::DistributedSampler sampler(
      data.training->size(),
      {.rank = world.rank(),
       .size = world.size(),
       .seed = options.seed,
       .batch = static_cast<std::size_t>(options.data.batch * options.distribution.accumulate)});
  std::shared_ptr<Classifier> model =
      make_classifier(world, options, torch::kCPU, MadeImages::class_count, sampler.steps());
  hora::broadcast_parameters(world, *model);
  return {std::move(data),    {MadeImages::transform(), MadeImages::transform()},
          std::move(sampler), static_cast<std::size_t>(options.data.batch),
          torch::kCPU,        Precision(torch::kCPU, options.precision),
          std::move(model),   TrainingLog({})};
}

struct Trained {
  Report report;
  std::string text;
};

Trained train_with(const hora::Context& world, const TrainingOptions& options, Setup& setup) {
  std::ostringstream text;
  Progress progress(&text, {.style = ProgressStyle::plain, .every = options.output.print_freq});
  StopRequest stop(world);
  const Report report = train(world, options, setup, progress, stop);
  return {report, text.str()};
}

Trained train_with(const hora::Context& world, const TrainingOptions& options) {
  auto setup = setup_of(world, options);
  return train_with(world, options, setup);
}

TEST(Trainer, EndsWhereTheDesiredAccuracyIsReached) {
  const hora::Context world = hora::init();
  TrainingOptions options = small_training();
  options.validation.desired_accuracy = 30;
  const Trained trained = train_with(world, options);
  EXPECT_GE(trained.report.best_accuracy, 30);
  EXPECT_TRUE(trained.report.seconds_to_accuracy.has_value());
  EXPECT_THAT(trained.text, HasSubstr("(desired: 30 %) after epoch "));
  EXPECT_THAT(trained.text, Not(HasSubstr("epoch 8/8")));
}

TEST(Trainer, SaysWhereTheDesiredAccuracyIsNotReached) {
  const hora::Context world = hora::init();
  TrainingOptions options = small_training();
  options.epochs = 1;
  options.optimizer.learning_rate = 0;
  options.validation.desired_accuracy = 100;
  const Trained trained = train_with(world, options);
  EXPECT_FALSE(trained.report.seconds_to_accuracy.has_value());
  EXPECT_THAT(trained.text, HasSubstr("did not reach the desired 100 % in 1 epochs"));
}

TEST(Trainer, ValidatesEverySoManyEpochsAndTheLast) {
  const hora::Context world = hora::init();
  TrainingOptions options = small_training();
  options.epochs = 3;
  options.validation.every = 2;
  const std::string text = train_with(world, options).text;
  EXPECT_THAT(text, testing::ContainsRegex("epoch 1/3: loss [0-9.]+, [0-9]+ images/s, waited"));
  EXPECT_THAT(text, testing::ContainsRegex("epoch 2/3: loss [0-9.]+, validation [0-9.]+ %"));
  EXPECT_THAT(text, testing::ContainsRegex("epoch 3/3: loss [0-9.]+, validation [0-9.]+ %"));
}

TEST(Trainer, OnlyEvaluates) {
  const hora::Context world = hora::init();
  TrainingOptions options = small_training();
  options.validation.only = true;
  auto setup = setup_of(world, options);
  const torch::Tensor before = setup.model->parameters().at(0).detach().clone();
  const Trained trained = train_with(world, options, setup);
  EXPECT_THAT(trained.text,
              testing::ContainsRegex("validation [0-9.]+ % \\([0-9]+ of 30 images\\)"));
  EXPECT_THAT(trained.text, Not(HasSubstr("epoch 1/")));
  EXPECT_TRUE(torch::equal(setup.model->parameters().at(0), before));
}

TEST(Trainer, PrintsEverySoManySteps) {
  const hora::Context world = hora::init();
  TrainingOptions options = small_training();
  options.epochs = 1;
  options.output.print_freq = 2;
  const std::string text = train_with(world, options).text;
  for (const std::string part : {"Epoch: [1][1/4]", "Epoch: [1][2/4]", "Epoch: [1][4/4]", "Time ",
                                 "Data ", "Loss ", "Acc@1 ", "Acc@5 "}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(text, Not(HasSubstr("Epoch: [1][3/4]")));
}

TEST(Trainer, TheFusedUpdateGivesTheWeightsOfAveragesAndUpdateApart) {
  const hora::Context world = hora::init();
  TrainingOptions options = small_training();
  options.epochs = 1;
  options.optimizer.name = "adamw";
  options.distribution.zero = true;
  auto apart = setup_of(world, options);
  train_with(world, options, apart);
  options.distribution.fused_update = true;
  auto fused = setup_of(world, options);
  const std::string text = train_with(world, options, fused).text;
  EXPECT_THAT(text, HasSubstr("in shares (ZeRO), updated by the pass that averages"));
  const auto expected = apart.model->named_parameters();
  for (const auto& parameter : fused.model->named_parameters()) {
    EXPECT_TRUE(torch::equal(parameter.value(), expected[parameter.key()])) << parameter.key();
  }
}

/// Options that change how gradients are put together or weights are updated.
struct Family {
  const char* name;
  void (*change)(TrainingOptions&);
};
void PrintTo(const Family& family, std::ostream* out) {
  *out << family.name;
}
class Families : public testing::TestWithParam<Family> {};

// One epoch with each, which ends with equal and finite weights on all ranks.
TEST_P(Families, TrainAlikeOnAllRanks) {
  const hora::Context world = hora::init();
  TrainingOptions options = small_training();
  options.epochs = 1;
  GetParam().change(options);
  auto setup = setup_of(world, options);
  const torch::Tensor before = setup.model->parameters().at(0).detach().clone();
  const Trained trained = train_with(world, options, setup);
  EXPECT_THAT(trained.text, HasSubstr("epoch 1/1: loss "));
  EXPECT_FALSE(torch::equal(setup.model->parameters().at(0), before)) << "nothing was learned";
  for (const auto& parameter : setup.model->named_parameters()) {
    EXPECT_TRUE(torch::isfinite(parameter.value()).all().item<bool>()) << parameter.key();
    torch::Tensor sum = parameter.value().detach().to(torch::kDouble, false, /*copy=*/true);
    const torch::Tensor own = sum.clone();
    hora::broadcast_(world, sum, {.root = 0});
    EXPECT_TRUE(torch::equal(sum, own)) << parameter.key() << " differs from rank 0's";
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Families,
    testing::Values(Family{"adam", [](TrainingOptions& o) { o.optimizer.name = "adam"; }},
                    Family{"adamw_zero",
                           [](TrainingOptions& o) {
                             o.optimizer.name = "adamw";
                             o.distribution.zero = true;
                             o.regularisation.clip_norm = 1;
                           }},
                    Family{"sgd_fused_update_half_model",
                           [](TrainingOptions& o) {
                             o.distribution.zero = o.distribution.fused_update = true;
                             o.precision = {.amp = Amp::bfloat16, .opt_level = OptLevel::O2};
                           }},
                    Family{"smoothing_accumulation_sync",
                           [](TrainingOptions& o) {
                             o.regularisation = {.label_smoothing = 0.1};
                             o.distribution.accumulate = 2;
                             o.distribution.sync_batch_norm = true;
                           }},
                    Family{"float16",
                           [](TrainingOptions& o) {
                             o.distribution.compression = GradientCompression::float16;
                           }},
                    Family{"half_model",
                           [](TrainingOptions& o) {
                             o.precision.opt_level = OptLevel::O2;
                             o.network.channels_last = true;
                             o.distribution.sync_batch_norm = true;
                           }},
                    Family{"top_k",
                           [](TrainingOptions& o) {
                             o.distribution.compression = GradientCompression::top_k;
                           }},
                    Family{"power_sgd",
                           [](TrainingOptions& o) {
                             o.distribution.compression = GradientCompression::power_sgd;
                           }}),
    [](const auto& family) { return family.param.name; });

}  // namespace
}  // namespace vision
