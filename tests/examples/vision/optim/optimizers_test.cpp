#include "examples/vision/optim/optimizers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "examples/vision/optim/lamb.h"
#include "examples/vision/optim/lars.h"
#include "examples/vision/optim/parameter_groups.h"

namespace vision {
namespace {

using testing::HasSubstr;

torch::nn::Sequential network() {
  return torch::nn::Sequential(torch::nn::Conv2d(3, 4, 3), torch::nn::BatchNorm2d(4),
                               torch::nn::Flatten(), torch::nn::Linear(4, 2));
}

std::vector<std::string> names_of(const torch::nn::Sequential& model,
                                  const std::vector<torch::Tensor>& tensors) {
  std::vector<std::string> names;
  for (const auto& tensor : tensors) {
    for (const auto& parameter : model->named_parameters()) {
      if (parameter.value().is_same(tensor)) names.push_back(parameter.key());
    }
  }
  return names;
}

TEST(SplitByDecay, LeavesBatchNormAndBiasesOut) {
  const auto model = network();
  const ParametersByDecay split = split_by_decay(model->named_parameters());
  EXPECT_THAT(names_of(model, split.decayed), testing::ElementsAre("0.weight", "3.weight"));
  EXPECT_THAT(names_of(model, split.not_decayed),
              testing::ElementsAre("0.bias", "1.weight", "1.bias", "3.bias"));
}

template <class Options>
const Options& options_of(const torch::optim::Optimizer& optimizer, std::size_t group) {
  return dynamic_cast<const Options&>(optimizer.param_groups().at(group).options());
}

TEST(MakeOptimizer, TakesTheSettings) {
  const auto model = network();
  const auto make = [&](const std::string& name, bool decay_all = false) {
    return make_optimizer({.name = name,
                           .learning_rate = 0.25,
                           .momentum = 0.5,
                           .weight_decay = 0.125,
                           .nesterov = true,
                           .decay_all = decay_all},
                          model->named_parameters());
  };
  const auto sgd = make("sgd");
  EXPECT_EQ(options_of<torch::optim::SGDOptions>(*sgd, 0).weight_decay(), 0.125);
  EXPECT_EQ(options_of<torch::optim::SGDOptions>(*sgd, 1).weight_decay(), 0);
  EXPECT_EQ(options_of<torch::optim::SGDOptions>(*sgd, 1).momentum(), 0.5);
  EXPECT_TRUE(options_of<torch::optim::SGDOptions>(*sgd, 1).nesterov());
  EXPECT_EQ(std::get<0>(options_of<torch::optim::AdamOptions>(*make("adam"), 1).betas()), 0.5);
  EXPECT_EQ(options_of<torch::optim::AdamWOptions>(*make("adamw"), 0).weight_decay(), 0.125);
  EXPECT_EQ(options_of<LARSOptions>(*make("lars"), 0).momentum(), 0.5);
  EXPECT_TRUE(options_of<LARSOptions>(*make("lars"), 0).adapt());
  EXPECT_FALSE(options_of<LARSOptions>(*make("lars"), 1).adapt());
  EXPECT_EQ(options_of<LAMBOptions>(*make("lamb"), 1).weight_decay(), 0);
  EXPECT_FALSE(options_of<LAMBOptions>(*make("lamb"), 1).adapt());
  for (const OptimizerKind& kind : optimizer_kinds()) {
    const auto all = make(std::string(kind.name), /*decay_all=*/true);
    ASSERT_EQ(all->param_groups().size(), 1U) << kind.name;
    EXPECT_EQ(all->param_groups()[0].params().size(), 6U);
    EXPECT_EQ(all->param_groups()[0].options().get_lr(), 0.25);
    EXPECT_EQ(make(std::string(kind.name))->param_groups().size(), 2U);
  }
}

TEST(MakeOptimizer, EveryOptimizerLearns) {
  torch::manual_seed(1);
  const torch::Tensor inputs = torch::randn({16, 3, 3, 3});
  const torch::Tensor labels = torch::randint(2, {16}, torch::kLong);
  for (const OptimizerKind& kind : optimizer_kinds()) {
    auto model = network();
    const auto optimizer = make_optimizer(
        {.name = std::string(kind.name), .learning_rate = kind.name == "lars" ? 1.0 : 0.02},
        model->named_parameters());
    const auto loss = [&] { return torch::cross_entropy_loss(model->forward(inputs), labels); };
    const double before = loss().item<double>();
    for (int step = 0; step < 30; ++step) {
      optimizer->zero_grad();
      loss().backward();
      optimizer->step();
    }
    EXPECT_LT(loss().item<double>(), 0.7 * before) << kind.name;
  }
}

TEST(MakeOptimizer, NamesWhatThereIs) {
  EXPECT_THAT([] { optimizer_kind("sdg"); },
              testing::ThrowsMessage<std::invalid_argument>(
                  "there is no optimizer 'sdg'; there are sgd, lars, lamb, adam, adamw"));
  EXPECT_TRUE(optimizer_kind("adamw").elementwise);
  EXPECT_FALSE(optimizer_kind("lamb").elementwise);
  const auto model = network();
  EXPECT_THAT(
      [&] { make_optimizer({.name = "lars", .weight_decay = -1}, model->named_parameters()); },
      testing::ThrowsMessage<std::invalid_argument>(HasSubstr("weight_decay is -1")));
}

}  // namespace
}  // namespace vision
