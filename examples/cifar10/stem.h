#pragma once

namespace cifar10 {

/// What stands before the four stages of a ResNet.
enum class Stem {
  cifar,     ///< 3x3 convolution of stride 1, no pooling: for images of 32x32
  imagenet,  ///< torchvision's: 7x7 convolution of stride 2, then max-pooling of stride 2
};

}  // namespace cifar10
