/// The gradients of a well-known network, for their sizes.
#pragma once

#include <cstddef>
#include <vector>

namespace bench {

/// Element counts of torchvision's resnet50().parameters(), in the order of parameters(): 161
/// tensors, 25,557,032 elements. Source: torchvision/models/resnet.py, ResNet with Bottleneck and
/// layers 3, 4, 6, 3 (no convolution has a bias; a batch norm has a weight and a bias).
std::vector<std::size_t> resnet50_gradients();

}  // namespace bench
