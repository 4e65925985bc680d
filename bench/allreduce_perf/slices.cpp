#include "bench/allreduce_perf/slices.h"

#include <algorithm>

namespace bench {
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

}  // namespace bench
