#include "examples/vision/models/model.h"

#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <functional>
#include <sstream>
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
    const ModelOptions options{.classes = 10, .base_width = 16};
    ModelOptions other = options;
    other.channels_last = true;
    torch::manual_seed(1);
    const auto model = make_model(name, options);
    torch::manual_seed(1);
    const auto channels_last = make_model(name, other);
    model->eval();
    channels_last->eval();
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

TEST(Model, IsSavedAndLoaded) {
  const auto model = make_model("resnet20", {.classes = 10});
  std::stringstream bytes;
  torch::save(model, bytes);
  auto loaded = make_model("resnet20", {.classes = 10});
  torch::load(loaded, bytes);
  expect_equal_copies(loaded->named_parameters(), model->named_parameters());
  expect_equal_copies(loaded->named_buffers(), model->named_buffers());
}

TEST(Model, MakesItsBatchNormsAsTheOptionSays) {
  struct Case {
    const char* architecture;
    int norms;
  };
  for (const Case& value : {Case{"resnet18", 20}, Case{"resnet50", 53}, Case{"resnet20", 19},
                            Case{"vgg16_bn", 13}, Case{"vgg16", 0}}) {
    int made = 0;
    ModelOptions options{.classes = 10, .base_width = 8};
    options.batch_norm = [&made](std::int64_t channels) {
      ++made;
      return torch::nn::AnyModule(
          torch::nn::BatchNorm2d(torch::nn::BatchNormOptions(channels).momentum(0.5)));
    };
    const auto model = make_model(value.architecture, options);
    EXPECT_EQ(made, value.norms) << value.architecture;
    int registered = 0;
    for (const auto& module : model->modules()) {
      if (const auto* const norm = module->as<torch::nn::BatchNorm2d>()) {
        EXPECT_EQ(norm->options.momentum(), 0.5);
        ++registered;
      }
    }
    EXPECT_EQ(registered, value.norms) << value.architecture;
  }
}

TEST(ResNet, ZeroInitMakesEveryLastNormZeroAndNoOther) {
  struct Case {
    const char* name;
    const char* last;
    int blocks;
  };
  for (const Case& value : {Case{"resnet18", ".bn2.weight", 8}, Case{"resnet50", ".bn3.weight", 16},
                            Case{"resnet20", ".bn2.weight", 9}}) {
    const auto model = make_model(value.name, {.zero_init_residual = true});
    int zeros = 0;
    for (const auto& item : model->named_parameters()) {
      if (item.key().ends_with("weight")) {
        const bool last = item.key().ends_with(value.last);
        EXPECT_EQ(item.value().eq(0).all().item<bool>(), last) << value.name << ", " << item.key();
        zeros += last ? 1 : 0;
      }
    }
    EXPECT_EQ(zeros, value.blocks) << value.name;
  }
}

TEST(Models, HaveTheChosenStemWidthAndClasses) {
  struct Row {
    const char* architecture;
    ModelOptions options;
    std::vector<std::string> shown;
  };
  std::string text;
  for (const Row& row : {Row{"resnet50",
                             {.classes = 7, .stem = Stem::cifar, .base_width = 8},
                             {"conv1", "layer1.0.conv3", "layer4.2.conv2", "fc"}},
                         Row{"resnet20",
                             {.stem = Stem::imagenet, .base_width = 32},
                             {"conv1", "layer3.2.conv2", "fc"}},
                         Row{"vgg11",
                             {.classes = 5, .base_width = 8},
                             {"features.0", "features.18", "classifier.0", "classifier.6"}},
                         Row{"alexnet",
                             {.classes = 5, .base_width = 8},
                             {"features.0", "features.3", "classifier.1", "classifier.6"}}}) {
    const auto model = make_model(row.architecture, row.options);
    text += row.architecture;
    text += model->named_modules().contains("maxpool") ? " with a maxpool" : "";
    for (const std::string& name : row.shown) {
      const auto sizes = model->named_parameters()[name + ".weight"].sizes();
      text += ", " + name + " " + testing::PrintToString(sizes.vec());
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
    for (const bool dropout : {true, false}) {
      ModelOptions options{.classes = 10, .base_width = 16};
      if (!dropout) options.dropout = 0;
      const auto model = make_model(name, options);
      EXPECT_NE(torch::equal(model->forward(images), model->forward(images)), dropout) << name;
      model->eval();
      EXPECT_TRUE(torch::equal(model->forward(images), model->forward(images))) << name;
    }
  }
}

}  // namespace
}  // namespace vision
