#include "examples/vision/models/model.h"

#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/seed.h"

namespace vision {
namespace {

using Sizes = std::vector<std::int64_t>;
using testing::HasSubstr;

/// The text of the std::invalid_argument that `action` throws.
template <class Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Model, AnUnknownNameIsRefusedWithThoseThereAre) {
  EXPECT_THAT(refusal([] { make_model("resnet19", {}); }),
              HasSubstr("no architecture 'resnet19'; expected one of resnet18, resnet34, "));
}

TEST(Model, OptionsThatTheArchitectureDoesNotHaveAreRefusedByName) {
  struct Wrong {
    const char* architecture;
    ModelOptions options;
    const char* text;
  };
  for (const Wrong& wrong :
       {Wrong{"vgg11", {.stem = Stem::imagenet}, "vgg11: a stem was chosen; only ResNets"},
        Wrong{"alexnet", {.zero_init_residual = true}, "alexnet: zero_init_residual was set"}}) {
    EXPECT_THAT(refusal([&] { make_model(wrong.architecture, wrong.options); }),
                HasSubstr(wrong.text));
  }
}

TEST(Model, TakesTheSmallestImageAndRefusesASmallerOne) {
  const torch::NoGradGuard no_grad;
  for (const Architecture& architecture : architectures()) {
    const auto model = make_model(architecture.name, {.classes = 3, .base_width = 8});
    model->eval();
    const std::int64_t least = architecture.smallest_image;
    EXPECT_EQ(model->forward(torch::zeros({2, 3, least, least})).sizes(), (Sizes{2, 3}));
    EXPECT_EQ(model->forward(torch::zeros({1, 3, least, least + 9})).sizes(), (Sizes{1, 3}));
    for (const auto& images :
         {torch::zeros({2, 3, least - 1, least}), torch::zeros({2, 3, least, least - 1})}) {
      EXPECT_THAT(refusal([&] { model->forward(images); }),
                  HasSubstr("H and W of " + std::to_string(least) + " or more"))
          << architecture.name;
    }
  }
}

TEST(Model, RefusesImagesOfAnotherShapeByTheirShape) {
  const auto model = make_model("resnet20", {});
  EXPECT_EQ(refusal([&] {
              model->forward(torch::zeros({2, 1, 32, 32}));
            }),
            "resnet20: images have shape [2, 1, 32, 32]; expected [N, 3, H, W] with H and W of 1 "
            "or more");
  EXPECT_THAT(refusal([&] {
                model->forward(torch::zeros({3, 32, 32}));
              }),
              HasSubstr("images have shape [3, 32, 32]"));
}

TEST(Model, ChannelsLastGivesTheSameLogitsAndGradientsInThatOrder) {
  torch::manual_seed(hora::internal::test::generator()());
  const torch::Tensor images = torch::randn({4, 3, 64, 64});
  for (const char* const name : {"resnet18", "resnet50", "resnet20", "alexnet", "vgg11_bn"}) {
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
std::vector<std::string> names(const Dictionary& items) {
  std::vector<std::string> result;
  for (const auto& item : items) {
    result.push_back(item.key());
  }
  return result;
}

template <class Dictionary>
void expect_equal_copies(const Dictionary& copies, const Dictionary& originals) {
  ASSERT_EQ(names(copies), names(originals));
  for (const auto& copy : copies) {
    const torch::Tensor& original = originals[copy.key()];
    EXPECT_TRUE(torch::equal(copy.value(), original)) << copy.key();
    EXPECT_NE(copy.value().data_ptr(), original.data_ptr()) << copy.key();
    EXPECT_EQ(copy.value().strides(), original.strides()) << copy.key();
    EXPECT_EQ(copy.value().requires_grad(), original.requires_grad()) << copy.key();
  }
}

TEST(Model, ACloneHasTheSameValuesInMemoryOfItsOwn) {
  for (const char* const name : {"resnet18", "resnet50", "resnet20", "alexnet", "vgg11_bn"}) {
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
    for (const auto& parameter : clone->parameters()) {
      EXPECT_FALSE(parameter.grad().defined());
    }

    const torch::NoGradGuard no_grad;
    model->eval();
    clone->eval();
    const torch::Tensor images = torch::randn({2, 3, 64, 64});
    const torch::Tensor logits = model->forward(images);
    EXPECT_TRUE(torch::equal(clone->forward(images), logits)) << name;
    for (const auto& parameter : clone->parameters()) {
      parameter.zero_();
    }
    EXPECT_TRUE(torch::equal(model->forward(images), logits)) << name;
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

TEST(Architectures, AreListedByName) {
  EXPECT_EQ(architecture_names(),
            "resnet18, resnet34, resnet50, resnet101, resnet152, resnet20, resnet32, resnet44, "
            "resnet56, resnet110, alexnet, vgg11, vgg11_bn, vgg16, vgg16_bn");
}

// A ResNet's number counts the layers with weights: first convolution, those of the blocks, last.
TEST(Architectures, OfResNetsHaveTheirNumberOfLayers) {
  for (const Architecture& architecture : architectures()) {
    if (const auto* const shape = std::get_if<ResNetShape>(&architecture.shape)) {
      int layers = 2;
      for (const int blocks : shape->blocks) {
        layers += blocks * (shape->block == Block::basic ? 2 : 3);
      }
      EXPECT_EQ("resnet" + std::to_string(layers), architecture.name);
    }
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

TEST(ResNet, WithZeroInitBlocksBeginAsTheIdentity) {
  const torch::NoGradGuard no_grad;
  torch::manual_seed(hora::internal::test::generator()());
  const torch::Tensor images = torch::randn({2, 3, 32, 32});
  for (const bool zero_init : {false, true}) {
    const auto model = make_model("resnet20", {.classes = 10, .zero_init_residual = zero_init});
    const torch::Tensor before = model->forward(images);
    for (auto& item : model->named_parameters()) {
      if (item.key().find("layer") != std::string::npos && item.value().dim() == 4) {
        item.value().normal_();
      }
    }
    EXPECT_EQ(torch::equal(model->forward(images), before), zero_init);
  }
}

TEST(ResNet, HasTheChosenStemAndWidth) {
  const auto sizes = [](const Classifier& model, const char* name) {
    return model.named_parameters()[name].sizes().vec();
  };
  const auto narrow = make_model("resnet50", {.classes = 7, .stem = Stem::cifar, .base_width = 8});
  EXPECT_EQ(sizes(*narrow, "conv1.weight"), (Sizes{8, 3, 3, 3}));
  EXPECT_EQ(sizes(*narrow, "layer1.0.conv3.weight"), (Sizes{32, 8, 1, 1}));
  EXPECT_EQ(sizes(*narrow, "layer4.2.conv2.weight"), (Sizes{64, 64, 3, 3}));
  EXPECT_EQ(sizes(*narrow, "fc.weight"), (Sizes{7, 256}));
  EXPECT_FALSE(narrow->named_modules().contains("maxpool"));

  const auto wide = make_model("resnet20", {.stem = Stem::imagenet, .base_width = 32});
  EXPECT_EQ(sizes(*wide, "conv1.weight"), (Sizes{32, 3, 7, 7}));
  EXPECT_EQ(sizes(*wide, "layer3.2.conv2.weight"), (Sizes{128, 128, 3, 3}));
  EXPECT_EQ(sizes(*wide, "fc.weight"), (Sizes{1000, 128}));
  EXPECT_TRUE(wide->named_modules().contains("maxpool"));
}

TEST(PlainNetworks, HaveTheChosenWidthAndClasses) {
  const auto sizes = [](const Classifier& model, const char* name) {
    return model.named_parameters()[name].sizes().vec();
  };
  const auto vgg = make_model("vgg11", {.classes = 5, .base_width = 8});
  EXPECT_EQ(sizes(*vgg, "features.0.weight"), (Sizes{8, 3, 3, 3}));
  EXPECT_EQ(sizes(*vgg, "features.18.weight"), (Sizes{64, 64, 3, 3}));
  EXPECT_EQ(sizes(*vgg, "classifier.0.weight"), (Sizes{512, 64 * 49}));
  EXPECT_EQ(sizes(*vgg, "classifier.6.weight"), (Sizes{5, 512}));

  const auto alexnet = make_model("alexnet", {.classes = 5, .base_width = 8});
  EXPECT_EQ(sizes(*alexnet, "features.0.weight"), (Sizes{8, 3, 11, 11}));
  EXPECT_EQ(sizes(*alexnet, "features.3.weight"), (Sizes{24, 8, 5, 5}));
  EXPECT_EQ(sizes(*alexnet, "classifier.1.weight"), (Sizes{512, 32 * 36}));
  EXPECT_EQ(sizes(*alexnet, "classifier.6.weight"), (Sizes{5, 512}));
}

// By its expectation, half of what goes in is dropped where nothing else is said.
TEST(PlainNetworks, DropHalfInTrainingAloneUnlessToldOtherwise) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor images = torch::rand({2, 3, 64, 64});
  for (const char* const name : {"alexnet", "vgg11"}) {
    for (const bool dropout : {true, false}) {
      ModelOptions options{.classes = 10, .base_width = 16};
      if (!dropout) {
        options.dropout = 0;
      }
      const auto model = make_model(name, options);
      EXPECT_NE(torch::equal(model->forward(images), model->forward(images)), dropout) << name;
      model->eval();
      EXPECT_TRUE(torch::equal(model->forward(images), model->forward(images))) << name;
    }
  }
}

}  // namespace
}  // namespace vision
