/// The workload of allreduce and its peers: ResNet-50's gradients, memory itself, the bars.
/// Pure.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "bench/harness/comparison.h"

namespace bench {

/// Element counts of torchvision's resnet50().parameters(), in the order of parameters(): 161
/// tensors, 25,557,032 elements. Source: torchvision/models/resnet.py, ResNet with Bottleneck and
/// layers 3, 4, 6, 3 (no convolution has a bias; a batch norm has a weight and a bias).
std::vector<std::size_t> resnet50_gradients();

/// One rank's part of an allreduce in one memory: each element becomes the sum over all arrays, in
/// all arrays: read once, written once.
void sum_into_all(std::span<float* const> arrays, std::size_t count);

/// The bars for allreduce, on 2 ranks of one node.
std::vector<Bar> allreduce_bars();

}  // namespace bench
