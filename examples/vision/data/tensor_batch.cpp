#include "examples/vision/data/tensor_batch.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/torch.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace vision {

BatchAllocator allocator_for(const torch::Device& device) {
  if (!device.is_cuda()) {
    return allocate_pageable;
  }
  return [](std::size_t bytes) {
    auto memory = std::make_shared<torch::Tensor>(
        torch::empty({static_cast<std::int64_t>(bytes)},
                     torch::TensorOptions().dtype(torch::kUInt8).pinned_memory(true)));
    auto* begin = reinterpret_cast<std::byte*>(memory->data_ptr<std::uint8_t>());
    return std::shared_ptr<std::byte>(std::move(memory), begin);
  };
}

TensorBatch to_tensors(Batch batch, ImageSize size, Layout layout, const torch::Device& device,
                       CopiedBatches& copies) {
  const std::shared_ptr<BatchData> shared = std::move(batch);
  const auto keep = [shared](void*) {};
  constexpr auto channels = static_cast<std::int64_t>(image_channels);
  const auto samples = static_cast<std::int64_t>(shared->size());
  const std::int64_t height = size.height;
  const std::int64_t width = size.width;
  const std::int64_t floats = channels * height * width;
  const std::array sizes{samples, channels, height, width};
  const std::array strides = layout == Layout::channels_first
                                 ? std::array{floats, height * width, width, std::int64_t{1}}
                                 : std::array{floats, std::int64_t{1}, width * channels, channels};
  const torch::Tensor images =
      torch::from_blob(shared->images().data(), sizes, strides, keep, torch::kFloat32);
  const torch::Tensor labels =
      torch::from_blob(shared->labels().data(), {samples}, keep, torch::kInt64);
  if (device.is_cpu()) return {images, labels};
  try {
    TensorBatch copied{images.to(device, /*non_blocking=*/true),
                       labels.to(device, /*non_blocking=*/true)};
    const auto event = std::make_shared<c10::Event>(device.type());
    event->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
    copies.keep(shared, [event] { return event->query(); });
    return copied;
  } catch (...) {
    CopiedBatches::abandon(shared);  // the first of the copies may be under way
    throw;
  }
}

}  // namespace vision
