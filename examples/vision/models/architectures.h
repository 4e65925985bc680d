/// The architectures by name: values, which know no LibTorch. make_model() (model.h) builds them.
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>
#include <variant>

namespace vision {

/// The layers before the stages of a ResNet.
enum class Stem {
  cifar,     ///< 3x3 convolution of stride 1, no pooling: for images of 32x32
  imagenet,  ///< torchvision's: 7x7 convolution of stride 2, then max-pooling of stride 2
};

/// The two residual blocks of He et al., Deep residual learning (2015), figure 5.
enum class Block {
  basic,       ///< two 3x3 convolutions
  bottleneck,  ///< 1x1, 3x3, 1x1, the last with four times the channels
};

/// How a block adds its input where its output has another shape (He et al. 2015, section 3.3).
enum class Shortcut {
  padding,     ///< option A: every second row and column, zeros in the channels that are new
  projection,  ///< option B: a 1x1 convolution with its own BatchNorm
};

struct ResNetShape {
  Block block;
  std::array<int, 4> blocks;  ///< of each stage; 0: no such stage
  int width;                  ///< channels of the first stage; each next one has twice as many
  Stem stem;
  Shortcut shortcut;
};

/// Krizhevsky, One weird trick (2014), as in torchvision.
struct AlexNetShape {};

/// Simonyan, Zisserman, Very deep convolutional networks (2014), table 1.
struct VggShape {
  std::array<int, 5> convolutions;  ///< of each stage, before its max-pooling
  bool batch_norm;                  ///< behind each convolution
};

struct Architecture {
  std::string_view name;  ///< torchvision's, where it has this architecture
  std::variant<ResNetShape, AlexNetShape, VggShape> shape;
  int smallest_image;  ///< width and height that the strides and poolings need
};

/// All, ordered by family and depth.
std::span<const Architecture> architectures();

/// All names in that order, with ", " between them.
std::string architecture_names();

/// Throws std::invalid_argument, which lists the known names, where `name` is not one of them.
const Architecture& find_architecture(std::string_view name);

}  // namespace vision
