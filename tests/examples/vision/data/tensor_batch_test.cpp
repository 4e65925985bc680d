#include "examples/vision/data/tensor_batch.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <utility>

namespace vision {
namespace {

constexpr ImageSize size{4, 2};
constexpr std::size_t floats = image_bytes(size);

// Two samples whose values count up from 0.
Batch counting(BatchPool& pool) {
  Batch batch = pool.take(2);
  std::iota(batch->images().begin(), batch->images().end(), 0.0F);
  batch->labels()[0] = 7;
  batch->labels()[1] = 3;
  return batch;
}

TEST(ToTensors, HasEachPixelWhereItsLayoutSays) {
  const auto pool = std::make_shared<BatchPool>(3, floats, allocate_pageable);
  CopiedBatches copies;
  for (const Layout layout : {Layout::channels_first, Layout::channels_last}) {
    const TensorBatch tensors = to_tensors(counting(*pool), size, layout, torch::kCPU, copies);
    EXPECT_EQ(tensors.images.sizes(), (torch::IntArrayRef{2, 3, 2, 4}));
    const bool last = layout == Layout::channels_last;
    EXPECT_EQ(tensors.images.is_contiguous(torch::MemoryFormat::ChannelsLast), last);
    EXPECT_EQ(tensors.images.is_contiguous(), !last);
    // Sample 1, channel 2, row 1, column 3.
    EXPECT_EQ(tensors.images[1][2][1][3].item<float>(), 47);
    // Sample 0, channel 1, row 0, column 2.
    EXPECT_EQ(tensors.images[0][1][0][2].item<float>(), last ? 7 : 10);
    EXPECT_EQ(tensors.labels[0].item<std::int64_t>(), 7);
    EXPECT_EQ(tensors.labels[1].item<std::int64_t>(), 3);
  }
}

TEST(ToTensors, GivesTheMemoryBackWithItsLastTensor) {
  const auto pool = std::make_shared<BatchPool>(3, floats, allocate_pageable);
  CopiedBatches copies;
  TensorBatch tensors =
      to_tensors(counting(*pool), size, Layout::channels_first, torch::kCPU, copies);
  const void* memory = tensors.images.data_ptr();
  torch::Tensor part = tensors.images[1];
  tensors = {};
  EXPECT_NE(pool->take(3)->images().data(), memory);
  EXPECT_EQ(part[0][0][0].item<float>(), floats);
  part = torch::Tensor();
  const Batch first = pool->take(3);
  const Batch second = pool->take(3);
  EXPECT_TRUE(first->images().data() == memory || second->images().data() == memory);
}

}  // namespace
}  // namespace vision
