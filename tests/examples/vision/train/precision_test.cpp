// Trainings in each precision on the CPU, alone and on 2 ranks.
#include "examples/vision/train/precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hora/torch.h>

#include <cmath>
#include <stdexcept>
#include <thread>

#include "tests/frameworks/torch/network.h"
#include "tests/support/golden.h"
#include "tests/support/seed.h"

namespace vision {
namespace {

constexpr std::int64_t kClasses = 4;
constexpr std::int64_t kSide = 12;

struct Batch {
  torch::Tensor images;
  torch::Tensor labels;
};

/// Bars of ink, at a height that is the label.
Batch make_batch(std::int64_t size) {
  const torch::Tensor labels = torch::randint(kClasses, {size}, torch::kLong);
  const torch::Tensor rows = torch::arange(kSide).view({1, 1, kSide, 1}) / 3;
  const torch::Tensor ink = rows.floor().eq(labels.view({size, 1, 1, 1})).to(torch::kFloat32);
  return {ink + 0.3 * torch::randn({size, 3, kSide, kSide}), labels};
}

struct Training {
  Training(const hora::Context& world, const PrecisionOptions& options)
      : precision(torch::kCPU, options),
        model(make()),
        sgd(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)),
        optimizer(world, sgd, model->named_parameters()),
        scaler(optimizer, precision.scaler()) {
    hora::broadcast_parameters(world, *model);
  }

  static std::shared_ptr<Classifier> make() {
    torch::manual_seed(hora::internal::test::seed());
    return make_model("resnet20", {.classes = kClasses, .base_width = 4});
  }

  torch::Tensor loss_of(const Batch& batch) {
    return torch::nn::functional::cross_entropy(precision.logits(*model, batch.images),
                                                batch.labels);
  }

  /// True if the optimizer stepped.
  bool step(const torch::Tensor& loss) {
    optimizer.zero_grad();
    scaler.scale(loss).backward();
    const bool stepped = scaler.step();
    scaler.update();
    return stepped;
  }

  Precision precision;
  std::shared_ptr<Classifier> model;
  torch::optim::SGD sgd;
  hora::DistributedOptimizer optimizer;
  hora::GradScaler scaler;
};

class PrecisionTest : public testing::Test {
 protected:
  /// This rank's batch, another one in each step.
  Batch batch(int step) const {
    torch::manual_seed(hora::internal::test::seed() +
                       static_cast<std::uint64_t>(100 * step + world_.rank()));
    return make_batch(32 / world_.size());
  }

  bool last() const { return world_.rank() + 1 == world_.size(); }

  /// And in float32, as are gradients.
  void expect_equal_on_all_ranks(const Classifier& model) const {
    for (const auto& parameter : model.named_parameters()) {
      EXPECT_EQ(parameter.value().scalar_type(), torch::kFloat32) << parameter.key();
      EXPECT_EQ(parameter.value().grad().scalar_type(), torch::kFloat32) << parameter.key();
      EXPECT_TRUE(hora::internal::test::equals_root(world_, parameter.value())) << parameter.key();
    }
  }

  double mean_over_ranks(double value) const {
    hora::allreduce(world_, hora::view(&value, 1), {.name = "mean"});
    return value;
  }

  const hora::Context world_ = hora::init();
};

struct Course {
  double first = 0;  ///< mean loss of the first three steps, over all ranks
  double last = 0;   ///< of the last three
  int left_out = 0;  ///< steps in which a gradient overflowed
};

class PrecisionLearnsTest : public PrecisionTest,
                            public testing::WithParamInterface<PrecisionOptions> {
 protected:
  /// In float32: the same for every parameter.
  const Course& reference() const {
    static const Course course = [&] {
      Training training(world_, {});
      return train(training);
    }();
    return course;
  }
  Course train(Training& training) const {
    constexpr int kSteps = 30;
    Course course;
    for (int step = 0; step < kSteps; ++step) {
      const torch::Tensor loss = training.loss_of(batch(step));
      EXPECT_EQ(loss.scalar_type(), torch::kFloat32);
      if (!training.step(loss)) ++course.left_out;
      const double mean = mean_over_ranks(loss.item<double>()) / 3;
      if (step < 3) course.first += mean;
      if (step >= kSteps - 3) course.last += mean;
    }
    return course;
  }
};

TEST_P(PrecisionLearnsTest, LossFallsAsInFloat32) {
  Training training(world_, GetParam());
  const Course course = train(training);
  // A dynamic scale begins at 65536: a gradient of 1 overflows float16, and the scale is halved.
  EXPECT_LE(course.left_out, training.precision.scaler().enabled ? 3 : 0);
  EXPECT_LT(course.last, course.first / 5);
  EXPECT_NEAR(course.last, reference().last, 0.05 * reference().first);
  expect_equal_on_all_ranks(*training.model);
}

TEST_P(PrecisionLearnsTest, EvaluationHasTheSamePrecision) {
  Training training(world_, GetParam());
  training.model->eval();
  const torch::NoGradGuard no_grad;
  const Batch images = batch(0);
  const torch::Tensor logits = training.precision.logits(*training.model, images.images);
  EXPECT_EQ(logits.scalar_type(), torch::kFloat32);
  EXPECT_FALSE(logits.requires_grad());
  const bool in_16_bits = GetParam().amp != Amp::off || GetParam().opt_level > OptLevel::O0;
  EXPECT_EQ(torch::equal(logits, logits.to(torch::kBFloat16).to(torch::kFloat32)) ||
                torch::equal(logits, logits.to(torch::kHalf).to(torch::kFloat32)),
            in_16_bits);
  const torch::Tensor expected = training.model->forward(images.images);
  EXPECT_LT((logits - expected).abs().max().item<double>(),
            0.05 * expected.abs().max().item<double>());
}

INSTANTIATE_TEST_SUITE_P(, PrecisionLearnsTest,
                         testing::Values(PrecisionOptions{.opt_level = OptLevel::O0},
                                         PrecisionOptions{.amp = Amp::bfloat16},
                                         PrecisionOptions{.opt_level = OptLevel::O1},
                                         PrecisionOptions{.opt_level = OptLevel::O2},
                                         PrecisionOptions{.amp = Amp::bfloat16,
                                                          .opt_level = OptLevel::O2}),
                         [](const testing::TestParamInfo<PrecisionOptions>& test) {
                           const auto level = test.param.opt_level;
                           return (level ? "O" + std::to_string(static_cast<int>(*level))
                                         : std::string("amp")) +
                                  (test.param.amp == Amp::off ? "" : "_bf16");
                         });

class OverflowTest : public PrecisionTest, public testing::WithParamInterface<OptLevel> {
 protected:
  /// Steps on this rank's batch until one counts, and returns the scale of that one. A dynamic
  /// scale may have to fall first: a gradient of 1 times 65536 is infinite in float16.
  double scale_that_fits(Training& training) const {
    constexpr int kMostHalvings = 8;
    for (int step = 0; step <= kMostHalvings; ++step) {
      const double scale = training.scaler.current_scale();
      if (training.step(training.loss_of(batch(0)))) return scale;
      EXPECT_EQ(training.scaler.current_scale(), scale / 2);
    }
    ADD_FAILURE() << "no step counted down to a scale of " << training.scaler.current_scale();
    return training.scaler.current_scale();
  }
};

TEST_P(OverflowTest, OnOneRankAllSkipAndHalve) {
  Training training(world_, {.opt_level = GetParam()});
  ASSERT_EQ(training.scaler.current_scale(), 65536.0);
  const double scale = scale_that_fits(training);
  const auto before = hora::internal::test::copies_of(training.model->parameters());
  EXPECT_FALSE(training.step(training.loss_of(batch(1)) * (last() ? INFINITY : 1.0)));
  EXPECT_EQ(training.scaler.current_scale(), scale / 2);
  hora::internal::test::expect_equal(training.model->parameters(), before);
  EXPECT_LE(scale_that_fits(training), scale / 2);
  expect_equal_on_all_ranks(*training.model);
}

TEST_P(OverflowTest, AFixedScaleStays) {
  Training training(world_, {.opt_level = GetParam(), .loss_scale = 128});
  EXPECT_EQ(training.scaler.current_scale(), 128.0);
  EXPECT_FALSE(training.step(training.loss_of(batch(0)) * (last() ? INFINITY : 1.0)));
  EXPECT_EQ(training.scaler.current_scale(), 128.0);
  EXPECT_TRUE(training.step(training.loss_of(batch(1))));
  expect_equal_on_all_ranks(*training.model);
}

const auto name_of_level = [](const testing::TestParamInfo<OptLevel>& test) {
  return "O" + std::to_string(static_cast<int>(test.param));
};
INSTANTIATE_TEST_SUITE_P(, OverflowTest, testing::Values(OptLevel::O1, OptLevel::O2),
                         name_of_level);

TEST(PrecisionOptions, SayWhatIsComputedAndHowTheLossIsScaled) {
  std::string text;
  for (const torch::DeviceType device : {torch::kCPU, torch::kCUDA /* named, not used */}) {
    for (const PrecisionOptions& options :
         {PrecisionOptions{}, PrecisionOptions{.opt_level = OptLevel::O0},
          PrecisionOptions{.amp = Amp::float16}, PrecisionOptions{.amp = Amp::bfloat16},
          PrecisionOptions{.opt_level = OptLevel::O1}, PrecisionOptions{.opt_level = OptLevel::O2},
          PrecisionOptions{.opt_level = OptLevel::O2, .loss_scale = 128},
          PrecisionOptions{.amp = Amp::float16, .opt_level = OptLevel::O1},
          PrecisionOptions{.amp = Amp::bfloat16, .opt_level = OptLevel::O2}}) {
      try {
        const Precision precision(device, options);
        text += (precision.scaler().enabled ? "scaled, " : "unscaled, ") + precision.describe();
      } catch (const std::runtime_error& error) {
        text += error.what();
      }
      text += "\n";
    }
  }
  hora::internal::test::expect_golden("examples/vision/train/precision.txt", "all", text);
}

/// Shows the types within its forward(); its linear layer is registered twice.
class Shown : public Classifier {
 public:
  Shown() : Classifier(find_architecture("resnet20"), {.classes = 2}) {
    register_module("convolution", convolution);
    register_module("norm", norm);
    register_module("linear", linear);
    register_module("again", linear);
  }

  torch::nn::Conv2d convolution{torch::nn::Conv2dOptions(3, 4, 3).bias(false)};
  torch::nn::BatchNorm2d norm{4};
  torch::nn::Linear linear{4, 2};
  std::vector<torch::ScalarType> types;  ///< of weights, a bias, statistics, and a product
  bool fails = false;

 private:
  torch::Tensor logits(const torch::Tensor& images) override {
    types = {convolution->weight.scalar_type(), linear->weight.scalar_type(),
             linear->bias.scalar_type(), norm->running_mean.scalar_type(), product_type()};
    if (fails) throw std::runtime_error("made to fail");
    return linear(norm(convolution(images)).relu().mean({2, 3}));
  }
  void draw_weights() override {}

 public:
  static torch::ScalarType product_type() {
    return torch::mm(torch::ones({2, 2}), torch::ones({2, 2})).scalar_type();
  }
};

class ShownTest : public testing::Test {
 protected:
  ShownTest() { torch::manual_seed(hora::internal::test::seed()); }

  void expect_all_float32() {
    const auto parameters = shown_->named_parameters();
    EXPECT_TRUE(shown_->convolution->weight.is_same(parameters["convolution.weight"]));
    EXPECT_TRUE(shown_->linear->weight.is_same(parameters["linear.weight"]));
    EXPECT_TRUE(shown_->linear->bias.is_same(parameters["linear.bias"]));
    for (const auto& parameter : parameters) {
      EXPECT_EQ(parameter.value().scalar_type(), torch::kFloat32) << parameter.key();
    }
    EXPECT_EQ(Shown::product_type(), torch::kFloat32);
  }

  const std::shared_ptr<Shown> shown_ = std::make_shared<Shown>();
};

TEST_F(ShownTest, TypesAreTheLevelsWithinForwardAlone) {
  constexpr auto half = torch::kBFloat16, full = torch::kFloat32;
  for (const bool fails : {false, true}) {
    shown_->fails = fails;
    for (const OptLevel level : {OptLevel::O1, OptLevel::O2}) {
      const Precision precision(torch::kCPU, {.amp = Amp::bfloat16, .opt_level = level});
      try {
        precision.logits(*shown_, torch::ones({2, 3, 32, 32}));
        EXPECT_FALSE(fails);
      } catch (const std::runtime_error&) {
        EXPECT_TRUE(fails);
      }
      EXPECT_EQ(
          shown_->types,
          (level == OptLevel::O1 ? std::vector<torch::ScalarType>{full, full, full, full, half}
                                 : std::vector<torch::ScalarType>{half, half, half, full, full}));
      expect_all_float32();
    }
  }
}

// hora's hooks need this to average behind the rest of backward; and by hand, with O2.
TEST_F(ShownTest, GradientsOfConvertedWeightsArriveOneByOneLastLayerFirst) {
  std::vector<std::string> arrived;
  for (auto& parameter : shown_->named_parameters()) {
    if (parameter.value().dim() == 1 || parameter.key() == "again.weight") continue;
    parameter.value().register_hook([&arrived, name = parameter.key()](const torch::Tensor& g) {
      EXPECT_EQ(g.scalar_type(), torch::kFloat32);
      arrived.push_back(name);
    });
  }
  const torch::Tensor images = torch::randn({2, 3, 32, 32});
  const Precision precision(torch::kCPU, {.amp = Amp::bfloat16, .opt_level = OptLevel::O2});
  precision.logits(*shown_, images).square().sum().backward();
  EXPECT_EQ(arrived, (std::vector<std::string>{"linear.weight", "convolution.weight"}));

  const auto convert = [](const torch::Tensor& weight) {
    return weight.detach().to(torch::kBFloat16).requires_grad_();
  };
  const torch::Tensor kernel = convert(shown_->convolution->weight);
  const torch::Tensor weight = convert(shown_->linear->weight);
  const torch::Tensor bias = convert(shown_->linear->bias);
  const torch::Tensor features =
      shown_->norm(torch::conv2d(images.to(torch::kBFloat16), kernel)).relu().mean({2, 3});
  torch::nn::functional::linear(features, weight, bias)
      .to(torch::kFloat32)
      .square()
      .sum()
      .backward();
  const auto expect_gradient = [](const torch::Tensor& master, const torch::Tensor& copy) {
    EXPECT_TRUE(torch::equal(master.grad(), copy.grad().to(torch::kFloat32)));
  };
  expect_gradient(shown_->convolution->weight, kernel);
  expect_gradient(shown_->linear->weight, weight);
  expect_gradient(shown_->linear->bias, bias);
}

// Replicas as data_parallel has them; replicate_test.cpp has them within LibTorch's functions.
class DataParallelTest : public testing::TestWithParam<OptLevel> {
 protected:
  /// Each replica's logits of its half of the images, on a thread of its own.
  std::vector<torch::Tensor> logits_of_replicas() const {
    ReplicatedModel replicated(model_, precision_);
    std::vector<torch::Tensor> logits(2);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      threads.emplace_back([&, i,
                            replica = std::dynamic_pointer_cast<ReplicatedModel>(
                                replicated.clone(torch::Device(torch::kCPU)))] {
        logits[i] = replica->forward(halves_[i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    replicated.keep_statistics();
    return logits;
  }
  void expect_buffers_of(const Classifier& expected) const {
    for (const auto& buffer : model_->named_buffers()) {
      EXPECT_TRUE(torch::equal(buffer.value(), expected.named_buffers()[buffer.key()]))
          << buffer.key();
    }
  }

  const Precision precision_{torch::kCPU, {.opt_level = GetParam()}};
  const std::vector<torch::Tensor> halves_ = torch::randn({6, 3, 8, 8}).chunk(2);
  const std::shared_ptr<Classifier> model_ =
      make_model("resnet20", {.classes = 3, .base_width = 4});
};

TEST_P(DataParallelTest, StatisticsAreTheFirstReplicasAndGoOn) {
  const auto expected = std::dynamic_pointer_cast<Classifier>(model_->clone());
  for (int step = 0; step < 2; ++step) {
    const auto logits = logits_of_replicas();
    const auto other = std::dynamic_pointer_cast<Classifier>(expected->clone());
    EXPECT_TRUE(torch::equal(logits[0], precision_.logits(*expected, halves_[0])));
    EXPECT_TRUE(torch::equal(logits[1], precision_.logits(*other, halves_[1])));
    EXPECT_TRUE(logits[1].requires_grad());
    expect_buffers_of(*expected);
  }
}

TEST_P(DataParallelTest, EvaluationRecordsNothingAndKeepsStatistics) {
  model_->eval();
  const auto before = std::dynamic_pointer_cast<Classifier>(model_->clone());
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& logits : logits_of_replicas()) {
    EXPECT_FALSE(logits.requires_grad());
  }
  expect_buffers_of(*before);
}

INSTANTIATE_TEST_SUITE_P(, DataParallelTest,
                         testing::Values(OptLevel::O0, OptLevel::O1, OptLevel::O2), name_of_level);

TEST(AllGpus, WithoutOneSaysWhatToDo) {
  if (torch::cuda::device_count() > 0) GTEST_SKIP() << "there are GPUs";
  EXPECT_THAT([] { all_gpus(); }, testing::ThrowsMessage<std::runtime_error>(testing::ContainsRegex(
                                      "--mode data-parallel .* sees none.*--mode single")));
}

}  // namespace
}  // namespace vision
