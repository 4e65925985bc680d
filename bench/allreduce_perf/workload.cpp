#include "bench/allreduce_perf/workload.h"

#include <algorithm>

namespace bench {
namespace {

// One row a layer of torchvision's network: its blocks, the channels that come into the first one,
// and the channels of the 3x3 convolution; a block gives out four times as many.
struct Layer {
  std::size_t blocks;
  std::size_t in;
  std::size_t width;
};
constexpr Layer layers[] = {{3, 64, 64}, {4, 256, 128}, {6, 512, 256}, {3, 1024, 512}};
constexpr std::size_t expansion = 4;
constexpr std::size_t classes = 1000;

}  // namespace

std::vector<std::size_t> resnet50_gradients() {
  std::vector<std::size_t> counts;
  const auto convolution_and_norm = [&](std::size_t in, std::size_t out, std::size_t kernel) {
    for (const std::size_t count : {out * in * kernel * kernel, out, out}) counts.push_back(count);
  };
  convolution_and_norm(3, 64, 7);
  for (const Layer& layer : layers) {
    const std::size_t out = layer.width * expansion;
    for (std::size_t block = 0; block < layer.blocks; ++block) {
      const std::size_t in = block == 0 ? layer.in : out;
      convolution_and_norm(in, layer.width, 1);
      convolution_and_norm(layer.width, layer.width, 3);
      convolution_and_norm(layer.width, out, 1);
      if (block == 0) convolution_and_norm(in, out, 1);  // the shortcut's
    }
  }
  const std::size_t features = layers[3].width * expansion;
  counts.push_back(features * classes);
  counts.push_back(classes);
  return counts;
}

namespace {

constexpr std::size_t block = 1024;  // elements: one stays in the first-level cache

void sum_pair(float* first, float* second, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const float sum = first[i] + second[i];
    first[i] = sum;
    second[i] = sum;
  }
}

}  // namespace

void sum_into_all(std::span<float* const> arrays, std::size_t count) {
  if (arrays.size() == 2) {
    sum_pair(arrays[0], arrays[1], count);
    return;
  }
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t length = std::min(block, count - begin);
    float* sum = arrays.front() + begin;
    for (float* array : arrays.subspan(1)) {
      for (std::size_t i = 0; i < length; ++i) sum[i] += array[begin + i];
    }
    for (float* array : arrays.subspan(1)) std::copy_n(sum, length, array + begin);
  }
}

std::vector<Bar> allreduce_bars() {
  return {
      {"hora_bucket", "vs_mpi", {"mpi", "mpi_out_of_place"}, 3.0, 64 * kib},
      {"hora_bucket", "vs_mpi_copy", {"mpi_copy"}, 7.0, 1 * mib, 16 * mib},
      {"hora_bucket", "vs_private_memory", {"private_memory"}, 0.9, 4 * mib},
      {"hora", "vs_mpi", {"mpi", "mpi_out_of_place"}, 1.5, 1 * mib},
      {"hora", "vs_gloo", {"gloo"}, 5.0, 0},
  };
}

}  // namespace bench
