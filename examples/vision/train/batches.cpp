#include "examples/vision/train/batches.h"

#include <utility>

namespace vision {
namespace {

LoaderOptions with_memory_for(const torch::Device& device, LoaderOptions options) {
  options.allocator = allocator_for(device);
  return options;
}

}  // namespace

Batches::Batches(const Dataset& data, const TransformOptions& transform, LoaderOptions loader,
                 const torch::Device& device)
    : layout_(transform.layout),
      device_(device),
      loader_(data, transform, with_memory_for(device, std::move(loader))) {}

void Batches::start(std::uint64_t epoch, std::vector<std::size_t> samples, std::size_t first) {
  loader_.start(epoch, std::move(samples), first);
}

std::optional<DeviceBatch> Batches::next() {
  copies_.release();
  Batch batch = loader_.next();
  if (!batch) return std::nullopt;
  std::vector<std::size_t> replaced = batch->replaced();
  return DeviceBatch{to_tensors(std::move(batch), loader_.image_size(), layout_, device_, copies_),
                     std::move(replaced)};
}

}  // namespace vision
