// Models against torchvision's, by numbers that make_reference.py has made.
#include <gtest/gtest.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/utils.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/examples/vision/models/formula.h"

namespace vision {
namespace {

const nlohmann::json& reference() {
  static const nlohmann::json json =
      nlohmann::json::parse(std::ifstream(TORCHVISION_REFERENCE));  // throws where it is missing
  return json;
}

template <class Dictionary>
void append_lines(const Dictionary& tensors, std::string& lines) {
  for (const auto& item : tensors) {
    lines += fmt::format("{}{} {}", lines.empty() ? "" : "\n", item.key(),
                         fmt::join(item.value().sizes().vec(), "x"));
  }
}

class EveryArchitecture : public testing::TestWithParam<std::string_view> {};

TEST_P(EveryArchitecture, HasTorchvisionsNamesAndShapesInItsOrderAndTheChosenNorms) {
  const auto make_norm = [](std::int64_t channels) {
    return torch::nn::AnyModule(
        torch::nn::BatchNorm2d(torch::nn::BatchNormOptions(channels).momentum(0.5)));
  };
  const auto model = make_model(GetParam(), {.batch_norm = make_norm});
  const auto parameters = model->named_parameters();
  const auto buffers = model->named_buffers();
  std::size_t norms = 0;
  for (const auto& module : model->modules()) {
    const auto* const norm = module->as<torch::nn::BatchNorm2d>();
    norms += norm != nullptr && norm->options.momentum() == 0.5 ? 1 : 0;
  }
  EXPECT_EQ(3 * norms, buffers.size()) << "three of each norm";
  for (const auto& each : parameters) EXPECT_TRUE(each.value().requires_grad()) << each.key();
  std::string lines;
  append_lines(parameters, lines);
  append_lines(buffers, lines);
  EXPECT_EQ(fmt::format("{:016x}", fnv1a(lines)),
            reference().at("state").at(std::string(GetParam())).at("digest").get<std::string>())
      << "these are not the lines of make_reference.py --tensors " << GetParam() << ":\n"
      << lines;
}

std::vector<std::string_view> all_names() {
  std::vector<std::string_view> names;
  for (const Architecture& architecture : architectures()) names.push_back(architecture.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(All, EveryArchitecture, testing::ValuesIn(all_names()),
                         [](const auto& name) { return std::string(name.param); });

TEST(Torchvision, HasNoArchitectureThatIsNotHere) {
  EXPECT_EQ(reference().at("state").size(), architectures().size());
}

class DrawnWeights : public testing::TestWithParam<const char*> {};

// One generator gives the same numbers, up to their rounding, in every version and on every
// processor; another order of the layers gives others.
TEST_P(DrawnWeights, AreTorchvisionsOfTheSameSeed) {
  torch::set_num_threads(1);
  torch::manual_seed(7);
  const auto model = make_model(GetParam(), {.classes = 10});
  const auto expected = reference().at("drawn").at(GetParam()).get<std::vector<double>>();
  const auto parameters = model->named_parameters();
  ASSERT_EQ(parameters.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const torch::Tensor values = parameters[i].value().flatten();
    EXPECT_NEAR(values[values.numel() / 2].item<double>(), expected[i], 1e-5)
        << parameters[i].key();
  }
}

INSTANTIATE_TEST_SUITE_P(All, DrawnWeights,
                         testing::Values("resnet18", "resnet50", "resnet20", "alexnet", "vgg11_bn"),
                         [](const auto& name) { return std::string(name.param); });

struct LogitsCase {
  const char* name;  ///< in the reference
  const char* architecture;
  ModelOptions options;
};

class Logits : public testing::TestWithParam<LogitsCase> {
 protected:
  Logits() {
    torch::set_num_threads(1);
    ModelOptions options = GetParam().options;
    options.classes = 10;
    model_ = make_model(GetParam().architecture, options);
    fill_by_formula(*model_);
  }

  // LibTorch 1.13, which made the numbers, gives nearly the same bits. Other versions and
  // processors sum in another order: the rounding of float32, 6e-8, grows over up to 50 layers of
  // sums of up to 25,088 products.
  void expect_logits(const char* mode) {
    const nlohmann::json& expected = reference().at("logits").at(GetParam().name);
    const torch::Tensor images = formula_images(expected.at("side").get<std::int64_t>());
    const auto rows = expected.at(mode).get<std::vector<std::vector<double>>>();
    const torch::NoGradGuard no_grad;
    const torch::Tensor logits = model_->forward(images).to(torch::kDouble);
    ASSERT_EQ(logits.sizes(), (std::vector<std::int64_t>{4, 10}));
    torch::Tensor wanted = torch::empty({4, 10}, torch::kDouble);
    for (std::int64_t row = 0; row < 4; ++row) {
      wanted[row] = torch::tensor(rows.at(static_cast<std::size_t>(row)), torch::kDouble);
    }
    EXPECT_LE((logits - wanted).abs().max().item<double>(),
              1e-4 * wanted.abs().max().item<double>())
        << mode;
  }

  std::shared_ptr<Classifier> model_;
};

TEST_P(Logits, AreTorchvisions) {
  model_->eval();
  expect_logits("evaluation");
  model_->train();
  expect_logits("training");
}

INSTANTIATE_TEST_SUITE_P(
    All, Logits,
    testing::Values(LogitsCase{"resnet18", "resnet18", {}},
                    LogitsCase{"resnet18_cifar_stem", "resnet18", {.stem = Stem::cifar}},
                    LogitsCase{"resnet18", "resnet18", {.channels_last = true}},
                    LogitsCase{"resnet50", "resnet50", {}}, LogitsCase{"resnet20", "resnet20", {}},
                    LogitsCase{"alexnet", "alexnet", {.dropout = 0.0}},
                    LogitsCase{"vgg11_bn", "vgg11_bn", {.dropout = 0.0}}),
    [](const auto& test) {
      return test.param.name +
             std::string(test.param.options.channels_last ? "_channels_last" : "");
    });

}  // namespace
}  // namespace vision
