#include "examples/vision/models/model.h"

#include <gmock/gmock.h>
#include <torch/utils.h>

#include <functional>
#include <stdexcept>

#include "tests/support/golden.h"
#include "tests/support/seed.h"

namespace vision {
namespace {

using Sizes = std::vector<std::int64_t>;
constexpr const char* kMain[]{"resnet18", "resnet50", "resnet20", "alexnet", "vgg11_bn"};

/// The line of the std::invalid_argument that `action` throws.
std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::invalid_argument& error) {
    return error.what() + std::string("\n");
  }
  return "not refused\n";
}

TEST(Model, RefusesByNameAndShape) {
  const torch::NoGradGuard no_grad;
  std::string refusals;
  const auto make = [&](const char* name, const ModelOptions& options) {
    refusals += refusal([&] { make_model(name, options); });
  };
  make("resnet19", {});
  make("vgg11", {.stem = Stem::imagenet});
  make("alexnet", {.zero_init_residual = true});
  const auto model = make_model("resnet20", {});
  for (const Sizes& sizes : {Sizes{2, 1, 32, 32}, Sizes{3, 32, 32}}) {
    refusals += refusal([&] { model->forward(torch::zeros(sizes)); });
  }
  for (const Architecture& architecture : architectures()) {
    const auto small = make_model(architecture.name, {.classes = 3, .base_width = 8});
    small->eval();
    const std::int64_t least = architecture.smallest_image;
    EXPECT_EQ(small->forward(torch::zeros({2, 3, least, least})).sizes(), (Sizes{2, 3}));
    EXPECT_EQ(small->forward(torch::zeros({1, 3, least, least + 9})).sizes(), (Sizes{1, 3}));
    for (const Sizes& sizes : {Sizes{2, 3, least - 1, least}, Sizes{2, 3, least, least - 1}}) {
      refusals += refusal([&] { small->forward(torch::zeros(sizes)); });
    }
  }
  hora::internal::test::expect_golden("examples/vision/models/models.txt", "refusals", refusals);
}

TEST(Model, ChannelsLastGivesTheSameLogitsAndGradientsInThatOrder) {
  torch::manual_seed(hora::internal::test::generator()());
  const torch::Tensor images = torch::randn({4, 3, 64, 64});
  for (const char* const name : kMain) {
    const auto make = [&](bool channels_last) {
      torch::manual_seed(1);
      const auto made =
          make_model(name, {.classes = 10, .base_width = 16, .channels_last = channels_last});
      made->eval();
      return made;
    };
    const auto model = make(false);
    const auto channels_last = make(true);
    const torch::Tensor expected = model->forward(images);
    const torch::Tensor logits = channels_last->forward(images);
    EXPECT_TRUE(torch::allclose(logits, expected, 1e-3, 1e-3 * expected.abs().max().item<double>()))
        << name;
    logits.sum().backward();
    for (const auto& item : channels_last->named_parameters()) {
      const torch::Tensor& weight = item.value();
      if (weight.dim() == 4) {
        EXPECT_TRUE(weight.is_contiguous(torch::MemoryFormat::ChannelsLast)) << item.key();
        EXPECT_TRUE(weight.grad().is_contiguous(torch::MemoryFormat::ChannelsLast)) << item.key();
      }
    }
  }
}

template <class Dictionary>
void expect_equal_copies(const Dictionary& copies, const Dictionary& originals) {
  ASSERT_EQ(copies.keys(), originals.keys());
  for (const auto& copy : copies) {
    const torch::Tensor& original = originals[copy.key()];
    EXPECT_TRUE(torch::equal(copy.value(), original)) << copy.key();
    EXPECT_NE(copy.value().data_ptr(), original.data_ptr()) << copy.key();
    EXPECT_EQ(copy.value().strides(), original.strides()) << copy.key();
    EXPECT_EQ(copy.value().requires_grad(), original.requires_grad()) << copy.key();
  }
}

TEST(Model, ACloneHasTheSameValuesInMemoryOfItsOwn) {
  for (const char* const name : kMain) {
    const auto model = make_model(name, {.classes = 10, .base_width = 16, .channels_last = true});
    model->forward(torch::randn({2, 3, 64, 64})).sum().backward();  // moves running statistics
    model->parameters()[0].set_requires_grad(false);
    const auto children = model->children();
    children[0]->eval();  // as one does who freezes a part
    const auto clone = std::dynamic_pointer_cast<Classifier>(model->clone());
    ASSERT_NE(clone, nullptr);
    expect_equal_copies(clone->named_parameters(), model->named_parameters());
    expect_equal_copies(clone->named_buffers(), model->named_buffers());
    EXPECT_TRUE(clone->is_training());
    EXPECT_FALSE(clone->children()[0]->is_training());
    for (const auto& each : clone->parameters()) EXPECT_FALSE(each.grad().defined());

    const torch::NoGradGuard no_grad;
    model->eval();
    clone->eval();
    const torch::Tensor images = torch::randn({2, 3, 64, 64});
    const torch::Tensor logits = model->forward(images);
    EXPECT_TRUE(torch::equal(clone->forward(images), logits)) << name;
    for (const auto& parameter : clone->parameters()) parameter.zero_();
    EXPECT_FALSE(torch::equal(clone->forward(images), logits)) << name;
  }
}

TEST(ResNet, ZeroInitMakesEveryLastNormZeroAndNoOther) {
  std::string zeros;
  for (const char* const name : {"resnet18", "resnet50", "resnet20"}) {
    zeros += name;
    for (const auto& item : make_model(name, {.zero_init_residual = true})->named_parameters()) {
      const bool is_weight = item.key().ends_with("weight");
      if (is_weight && item.value().eq(0).all().item<bool>()) zeros += " " + item.key();
    }
    zeros += "\n";
  }
  hora::internal::test::expect_golden("examples/vision/models/models.txt", "zeros", zeros);
}

TEST(Models, HaveTheChosenStemWidthAndClasses) {
  const std::vector<std::pair<std::string, ModelOptions>> rows{
      {"resnet50", {.classes = 7, .stem = Stem::cifar, .base_width = 8}},
      {"resnet20", {.stem = Stem::imagenet, .base_width = 32}},
      {"vgg11", {.classes = 5, .base_width = 8}},
      {"alexnet", {.classes = 5, .base_width = 8}}};
  std::string text;
  for (const auto& [name, options] : rows) {
    const auto model = make_model(name, options);
    text += name + (model->named_modules().contains("maxpool") ? " with a maxpool" : "");
    for (const auto& item : model->named_parameters()) {
      if (item.value().dim() < 2) continue;
      text += ", " + item.key() + " " + testing::PrintToString(item.value().sizes().vec());
    }
    text += "\n";
  }
  hora::internal::test::expect_golden("examples/vision/models/models.txt", "sizes", text);
}

// By its expectation, half of what goes in is dropped where nothing else is said.
TEST(PlainNetworks, DropHalfInTrainingAloneUnlessToldOtherwise) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor images = torch::rand({2, 3, 64, 64});
  for (const char* const name : {"alexnet", "vgg11"}) {
    for (const auto dropout : {std::optional<double>(), std::optional(0.0)}) {
      const auto model = make_model(name, {.classes = 10, .base_width = 16, .dropout = dropout});
      EXPECT_EQ(torch::equal(model->forward(images), model->forward(images)), dropout.has_value());
      model->eval();
      EXPECT_TRUE(torch::equal(model->forward(images), model->forward(images))) << name;
    }
  }
}

}  // namespace
}  // namespace vision
