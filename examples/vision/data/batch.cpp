#include "examples/vision/data/batch.h"

#include <cstdlib>
#include <new>
#include <utility>

namespace vision {
namespace {

constexpr std::size_t alignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

std::shared_ptr<std::byte> allocate_pageable(std::size_t bytes) {
  void* memory = std::aligned_alloc(alignment, aligned(bytes));
  if (memory == nullptr) {
    throw std::bad_alloc();
  }
  return {static_cast<std::byte*>(memory), std::free};
}

BatchData::BatchData(std::size_t samples, std::size_t floats_a_sample,
                     const BatchAllocator& allocator)
    : floats_(floats_a_sample), size_(samples) {
  const std::size_t image_bytes = aligned(samples * floats_ * sizeof(float));
  memory_ = allocator(image_bytes + samples * sizeof(std::int64_t));
  images_ = reinterpret_cast<float*>(memory_.get());
  labels_ = reinterpret_cast<std::int64_t*>(memory_.get() + image_bytes);
}

void BatchData::reset(std::size_t samples) {
  size_ = samples;
  replaced_.clear();
}

// Without memory for the list of free batches, the batch is destroyed.
void ReturnToPool::operator()(BatchData* batch) const noexcept {
  std::unique_ptr<BatchData> owner(batch);
  try {
    const std::lock_guard lock(pool->mutex_);
    pool->free_.push_back(std::move(owner));
  } catch (const std::bad_alloc&) {
  }
}

BatchPool::BatchPool(std::size_t samples, std::size_t floats_a_sample, BatchAllocator allocator)
    : samples_(samples), floats_(floats_a_sample), allocator_(std::move(allocator)) {}

Batch BatchPool::take(std::size_t samples) {
  std::unique_ptr<BatchData> batch;
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      batch = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!batch) {
    batch = std::make_unique<BatchData>(samples_, floats_, allocator_);
  }
  batch->reset(samples);
  return Batch(batch.release(), ReturnToPool{shared_from_this()});
}

}  // namespace vision
