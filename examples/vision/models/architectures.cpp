#include "examples/vision/models/architectures.h"

#include <stdexcept>

namespace vision {
namespace {

constexpr Architecture resnet(std::string_view name, Block block, std::array<int, 4> blocks) {
  return {name, ResNetShape{block, blocks, 64, Stem::imagenet, Shortcut::projection}, 1};
}

// 6n + 2 layers: three stages of n blocks with 16, 32 and 64 channels, shortcuts without weights
// (He et al. 2015, section 4.2).
constexpr Architecture cifar_resnet(std::string_view name, int n) {
  return {name, ResNetShape{Block::basic, {n, n, n, 0}, 16, Stem::cifar, Shortcut::padding}, 1};
}

constexpr Architecture vgg(std::string_view name, std::array<int, 5> convolutions,
                           bool batch_norm) {
  return {name, VggShape{convolutions, batch_norm}, 32};
}

constexpr std::array table{
    resnet("resnet18", Block::basic, {2, 2, 2, 2}),
    resnet("resnet34", Block::basic, {3, 4, 6, 3}),
    resnet("resnet50", Block::bottleneck, {3, 4, 6, 3}),
    resnet("resnet101", Block::bottleneck, {3, 4, 23, 3}),
    resnet("resnet152", Block::bottleneck, {3, 8, 36, 3}),
    cifar_resnet("resnet20", 3),
    cifar_resnet("resnet32", 5),
    cifar_resnet("resnet44", 7),
    cifar_resnet("resnet56", 9),
    cifar_resnet("resnet110", 18),
    Architecture{"alexnet", AlexNetShape{}, 63},
    vgg("vgg11", {1, 1, 2, 2, 2}, false),
    vgg("vgg11_bn", {1, 1, 2, 2, 2}, true),
    vgg("vgg16", {2, 2, 3, 3, 3}, false),
    vgg("vgg16_bn", {2, 2, 3, 3, 3}, true),
};

}  // namespace

std::span<const Architecture> architectures() {
  return table;
}

std::string architecture_names() {
  std::string names;
  for (const Architecture& architecture : table) {
    names += (names.empty() ? "" : ", ") + std::string(architecture.name);
  }
  return names;
}

const Architecture& find_architecture(std::string_view name) {
  for (const Architecture& architecture : table) {
    if (architecture.name == name) return architecture;
  }
  throw std::invalid_argument("there is no architecture '" + std::string(name) +
                              "'; expected one of " + architecture_names());
}

}  // namespace vision
