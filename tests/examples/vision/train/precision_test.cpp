// Logits and gradients in each precision, on the CPU.
#include "examples/vision/train/precision.h"

#include <gmock/gmock.h>
#include <spdlog/fmt/fmt.h>

#include <stdexcept>
#include <thread>

#include "tests/support/golden.h"

namespace vision {
namespace {

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
        const hora::GradScalerOptions scaler = precision.scaler();
        text += scaler.enabled
                    ? fmt::format("scaled by {}, then {} or {} times that, ", scaler.initial_scale,
                                  scaler.growth_factor, scaler.backoff_factor)
                    : "unscaled, ";
        text += precision.describe();
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
  const torch::Tensor images_ = torch::randn({2, 3, 32, 32});
  const std::shared_ptr<Shown> shown_ = std::make_shared<Shown>();
};

TEST_F(ShownTest, TypesAreTheLevelsWithinForwardAlone) {
  using Types = std::vector<torch::ScalarType>;
  constexpr auto half = torch::kBFloat16, full = torch::kFloat32;
  const Types none(5, full), product{full, full, full, full, half},
      weights{half, half, half, full, full};
  const std::vector<std::pair<PrecisionOptions, Types>> rows{
      {{}, none},
      {{.opt_level = OptLevel::O0}, none},
      {{.amp = Amp::bfloat16}, product},
      {{.opt_level = OptLevel::O1}, product},
      {{.opt_level = OptLevel::O2}, weights},
      {{.amp = Amp::bfloat16, .opt_level = OptLevel::O2}, weights}};
  const auto parameters = shown_->named_parameters();
  for (const bool fails : {false, true}) {
    shown_->fails = fails;
    for (const auto& [options, types] : rows) {
      const Precision precision(torch::kCPU, options);
      const auto type = [&] { return precision.logits(*shown_, images_).scalar_type(); };
      if (fails) {
        EXPECT_THROW(type(), std::runtime_error);
      } else {
        EXPECT_EQ(type(), full);
      }
      EXPECT_EQ(shown_->types, types) << precision.describe();
      EXPECT_EQ(Shown::product_type(), full);
      EXPECT_TRUE(shown_->convolution->weight.is_same(parameters["convolution.weight"]));
      EXPECT_TRUE(shown_->linear->weight.is_same(parameters["linear.weight"]));
      EXPECT_TRUE(shown_->linear->bias.is_same(parameters["linear.bias"]));
      for (const auto& parameter : parameters) EXPECT_EQ(parameter.value().scalar_type(), full);
    }
  }
}

TEST_F(ShownTest, EachStepComputesWithTheWeightsOfItsTime) {
  for (const OptLevel level : {OptLevel::O1, OptLevel::O2}) {
    const Precision precision(torch::kCPU, {.opt_level = level});
    torch::nn::init::ones_(shown_->linear->bias);
    EXPECT_TRUE(precision.logits(*shown_, images_).ne(0).any().item<bool>());
    torch::nn::init::zeros_(shown_->linear->weight);
    torch::nn::init::zeros_(shown_->linear->bias);
    EXPECT_TRUE(precision.logits(*shown_, images_).eq(0).all().item<bool>());
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
  const Precision precision(torch::kCPU, {.amp = Amp::bfloat16, .opt_level = OptLevel::O2});
  precision.logits(*shown_, images_).square().sum().backward();
  EXPECT_THAT(arrived, testing::ElementsAre("linear.weight", "convolution.weight"));

  const auto convert = [](const torch::Tensor& weight) {
    return weight.detach().to(torch::kBFloat16).requires_grad_();
  };
  const torch::Tensor kernel = convert(shown_->convolution->weight);
  const torch::Tensor weight = convert(shown_->linear->weight);
  const torch::Tensor bias = convert(shown_->linear->bias);
  const torch::Tensor features =
      shown_->norm(torch::conv2d(images_.to(torch::kBFloat16), kernel)).relu().mean({2, 3});
  torch::nn::functional::linear(features, weight, bias)
      .to(torch::kFloat32)
      .square()
      .sum()
      .backward();
  for (const auto& [master, copy] :
       {std::pair(shown_->convolution->weight, kernel), std::pair(shown_->linear->weight, weight),
        std::pair(shown_->linear->bias, bias)}) {
    EXPECT_TRUE(torch::equal(master.grad(), copy.grad().to(torch::kFloat32)));
  }
}

class DataParallel : public testing::TestWithParam<OptLevel> {};

// Two replicas on threads of their own. LibTorch's replicate() leads their parameters' gradients to
// the model's.
TEST_P(DataParallel, IsTheModelOnPartsOfTheBatchWithTheFirstOnesStatistics) {
  const Precision precision(torch::kCPU, {.opt_level = GetParam()});
  const std::vector<torch::Tensor> halves = torch::randn({6, 3, 8, 8}).chunk(2);
  const auto model = make_model("resnet20", {.classes = 3, .base_width = 4});
  for (const bool trains : {true, true, false}) {
    const torch::AutoGradMode mode(trains);
    model->train(trains);
    std::vector<std::shared_ptr<Classifier>> expected;
    std::vector<std::shared_ptr<ReplicatedModel>> replicas;
    ReplicatedModel replicated(model, precision);
    for (int i = 0; i < 2; ++i) {
      expected.push_back(std::dynamic_pointer_cast<Classifier>(model->clone()));
      replicas.push_back(
          std::dynamic_pointer_cast<ReplicatedModel>(replicated.clone(torch::Device(torch::kCPU))));
    }
    for (std::size_t i = 0; i < 2; ++i) {
      torch::Tensor logits;
      std::jthread([&] { logits = replicas[i]->forward(halves[i]); }).join();
      const torch::Tensor wanted = precision.logits(*expected[i], halves[i]);
      EXPECT_TRUE(torch::equal(logits, wanted));
      ASSERT_EQ(logits.requires_grad(), trains);
      if (!trains) continue;
      (logits.square().sum() + wanted.square().sum()).backward();
      ASSERT_EQ(replicas[i]->parameters().size(), expected[i]->parameters().size());
      for (const auto& parameter : expected[i]->named_parameters()) {
        const torch::Tensor same = replicas[i]->named_parameters()["model." + parameter.key()];
        EXPECT_TRUE(torch::allclose(same.grad(), parameter.value().grad(), 1e-3, 1e-4));
      }
    }
    replicated.keep_statistics();
    for (const auto& buffer : model->named_buffers()) {
      EXPECT_TRUE(torch::equal(buffer.value(), expected[0]->named_buffers()[buffer.key()]));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, DataParallel, testing::Values(OptLevel::O0, OptLevel::O1, OptLevel::O2));

TEST(AllGpus, WithoutOneSaysWhatToDo) {
  if (torch::cuda::device_count() > 0) GTEST_SKIP() << "there are GPUs";
  EXPECT_THAT([] { all_gpus(); }, testing::ThrowsMessage<std::runtime_error>(testing::ContainsRegex(
                                      "--mode data-parallel .* sees none.*--mode single")));
}

}  // namespace
}  // namespace vision
