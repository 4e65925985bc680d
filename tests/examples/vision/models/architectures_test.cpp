#include "examples/vision/models/architectures.h"

#include <gmock/gmock.h>

#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace vision {
namespace {

TEST(Architectures, AreListedByName) {
  EXPECT_EQ(architecture_names(),
            "resnet18, resnet34, resnet50, resnet101, resnet152, resnet20, resnet32, resnet44, "
            "resnet56, resnet110, alexnet, vgg11, vgg11_bn, vgg16, vgg16_bn");
}

TEST(Architectures, AreFoundByName) {
  std::set<std::string_view> names;
  for (const Architecture& architecture : architectures()) {
    EXPECT_EQ(&find_architecture(architecture.name), &architecture);
    names.insert(architecture.name);
  }
  EXPECT_EQ(names.size(), architectures().size());
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

TEST(Architectures, AnUnknownNameIsRefusedWithThoseThereAre) {
  for (const std::string name : {"", "resnet", "ResNet18", "resnet18 ", "vgg"}) {
    try {
      find_architecture(name);
      ADD_FAILURE() << "found '" << name << "'";
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(error.what(),
                "there is no architecture '" + name + "'; expected one of " + architecture_names());
    }
  }
}

}  // namespace
}  // namespace vision
