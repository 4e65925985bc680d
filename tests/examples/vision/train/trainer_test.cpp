#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <sstream>

#include "examples/vision/train/program.h"
#include "tests/examples/vision/train/made_images.h"
#include "tests/frameworks/torch/network.h"

namespace vision {
namespace {

using test::MadeImages;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

struct Trained {
  Report report;
  std::string text;
  std::shared_ptr<Classifier> model;
};

class Trainer : public testing::Test {
 protected:
  Trainer() {
    options_.epochs = 8;
    options_.data.batch = 16;
    options_.data.workers = 0;
    options_.network.architecture = "resnet20";
    options_.optimizer = {.learning_rate = 0.05};
    options_.schedule = {.decay = Decay::constant};
  }

  std::shared_ptr<Classifier> make_model(std::size_t steps = 4) const {
    auto model = make_classifier(world_, options_, torch::kCPU, MadeImages::class_count, steps);
    hora::broadcast_parameters(world_, *model);
    return model;
  }
  Trained train_with_options() const {
    DataSets data;
    data.training = std::make_unique<MadeImages>(64 * static_cast<std::size_t>(world_.size()));
    data.validation = std::make_unique<MadeImages>(30);
    hora::DistributedSampler sampler(data.training->size(),
                                     {.rank = world_.rank(),
                                      .size = world_.size(),
                                      .seed = options_.seed,
                                      .batch = static_cast<std::size_t>(
                                          options_.data.batch * options_.distribution.accumulate)});
    const auto model = make_model(sampler.steps());
    vision::Setup setup{std::move(data),
                        {MadeImages::transform(), MadeImages::transform()},
                        std::move(sampler),
                        static_cast<std::size_t>(options_.data.batch),
                        torch::kCPU,
                        Precision(torch::kCPU, options_.precision),
                        model,
                        TrainingLog({})};
    std::ostringstream text;
    Progress progress(&text, {.style = ProgressStyle::plain, .every = options_.output.print_freq});
    StopRequest stop(world_);
    const Report report = train(world_, options_, setup, progress, stop);
    return {report, text.str(), model};
  }

  const hora::Context world_ = hora::init();
  TrainingOptions options_;
};

TEST_F(Trainer, EndsWhereTheDesiredAccuracyIsReachedInEachPrecision) {
  options_.validation.desired_accuracy = 30;
  for (const OptLevel level : {OptLevel::O0, OptLevel::O1, OptLevel::O2}) {
    options_.precision.opt_level = level;
    const Trained trained = train_with_options();
    EXPECT_GE(trained.report.best_accuracy, 30);
    EXPECT_TRUE(trained.report.seconds_to_accuracy.has_value());
    EXPECT_THAT(trained.text,
                AllOf(HasSubstr("(desired: 30 %) after epoch "), Not(HasSubstr("epoch 8/8"))));
  }
}

TEST_F(Trainer, SaysWhereTheDesiredAccuracyIsNotReached) {
  options_.epochs = 1;
  options_.optimizer.learning_rate = 0;
  options_.validation.desired_accuracy = 100;
  const Trained trained = train_with_options();
  EXPECT_FALSE(trained.report.seconds_to_accuracy.has_value());
  EXPECT_THAT(trained.text, HasSubstr("did not reach the desired 100 % in 1 epochs"));
}

TEST_F(Trainer, ValidatesAndPrintsEverySoOftenAndAtTheEnd) {
  options_.epochs = 3;
  options_.validation.every = 2;
  options_.output.print_freq = 2;
  EXPECT_THAT(train_with_options().text,
              AllOf(ContainsRegex("epoch 1/3: loss [0-9.]+, [0-9]+ images/s, waited"),
                    ContainsRegex("epoch 2/3: loss [0-9.]+, validation [0-9.]+ %"),
                    ContainsRegex("epoch 3/3: loss [0-9.]+, validation [0-9.]+ %"),
                    HasSubstr("Epoch: [1][1/4]"), HasSubstr("Epoch: [1][2/4]"),
                    Not(HasSubstr("Epoch: [1][3/4]")), HasSubstr("Epoch: [1][4/4]")));
}

TEST_F(Trainer, OnlyEvaluates) {
  options_.validation.only = true;
  const Trained trained = train_with_options();
  EXPECT_THAT(trained.text, ContainsRegex("validation [0-9.]+ % \\([0-9]+ of 30 images\\)"));
  EXPECT_THAT(trained.text, Not(HasSubstr("epoch 1/")));
  EXPECT_TRUE(torch::equal(trained.model->parameters().at(0), make_model()->parameters().at(0)));
}

TEST_F(Trainer, TheFusedUpdateGivesTheWeightsOfAveragesAndUpdateApart) {
  options_.epochs = 1;
  options_.optimizer.name = "adamw";
  options_.distribution.zero = true;
  const auto expected = train_with_options().model->parameters();
  options_.distribution.fused_update = true;
  const Trained fused = train_with_options();
  EXPECT_THAT(fused.text, HasSubstr("in shares (ZeRO), updated by the pass that averages"));
  hora::internal::test::expect_equal(fused.model->parameters(), expected);
}

/// Options that change how gradients are put together or weights are updated.
struct Family {
  const char* name;
  const char* optimizer = "sgd";
  DistributionOptions distribution = {};
  PrecisionOptions precision = {};
  RegularisationOptions regularisation = {};
  bool channels_last = false;
};
class Families : public Trainer, public testing::WithParamInterface<Family> {};

// One epoch with each, which ends with equal and finite weights on all ranks.
TEST_P(Families, TrainAlikeOnAllRanks) {
  options_.epochs = 1;
  options_.optimizer.name = GetParam().optimizer;
  options_.distribution = GetParam().distribution;
  options_.precision = GetParam().precision;
  options_.regularisation = GetParam().regularisation;
  options_.network.channels_last = GetParam().channels_last;
  const Trained trained = train_with_options();
  EXPECT_THAT(trained.text, HasSubstr("epoch 1/1: loss "));
  EXPECT_FALSE(torch::equal(trained.model->parameters().at(0), make_model()->parameters().at(0)))
      << "nothing was learned";
  for (const auto& parameter : trained.model->named_parameters()) {
    EXPECT_TRUE(torch::isfinite(parameter.value()).all().item<bool>()) << parameter.key();
    EXPECT_TRUE(hora::internal::test::equals_root(world_, parameter.value())) << parameter.key();
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Families,
    testing::Values(
        Family{"adam", "adam"}, Family{"adamw_zero", "adamw", {.zero = true}, {}, {.clip_norm = 1}},
        Family{"sgd_fused_update_half_model",
               "sgd",
               {.zero = true, .fused_update = true},
               {.amp = Amp::bfloat16, .opt_level = OptLevel::O2}},
        Family{"smoothing_accumulation_sync",
               "sgd",
               {.accumulate = 2, .sync_batch_norm = true},
               {},
               {.label_smoothing = 0.1}},
        Family{"autocast", "sgd", {}, {.amp = Amp::bfloat16}},
        Family{
            "half_model", "sgd", {.sync_batch_norm = true}, {.opt_level = OptLevel::O2}, {}, true},
        Family{"float16", "sgd", {.compression = GradientCompression::float16}},
        Family{"top_k", "sgd", {.compression = GradientCompression::top_k}},
        Family{"power_sgd", "sgd", {.compression = GradientCompression::power_sgd}}),
    [](const auto& family) { return family.param.name; });

}  // namespace
}  // namespace vision
