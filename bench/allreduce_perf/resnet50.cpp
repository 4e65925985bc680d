#include "bench/allreduce_perf/resnet50.h"

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

}  // namespace bench
