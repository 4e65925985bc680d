/// Memory of batches, used again and again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace vision {

/// Gives memory for `bytes` bytes, aligned to at least 64; may be called from any thread.
using BatchAllocator = std::function<std::shared_ptr<std::byte>(std::size_t bytes)>;

/// Pageable memory of the process.
std::shared_ptr<std::byte> allocate_pageable(std::size_t bytes);

/// Samples in the memory of one allocation: all images, then all labels.
class BatchData {
 public:
  BatchData(std::size_t samples, std::size_t floats_a_sample, const BatchAllocator& allocator);

  std::size_t size() const { return size_; }
  std::span<float> images() { return {images_, size_ * floats_}; }
  /// Of one sample.
  std::span<float> image(std::size_t sample) { return {images_ + sample * floats_, floats_}; }
  std::span<std::int64_t> labels() { return {labels_, size_}; }
  /// The samples, ascending, that hold another image than the sampler asked for, because that one
  /// was bad.
  const std::vector<std::size_t>& replaced() const { return replaced_; }

  /// Makes it a batch of `samples`, at most those it was made for, whose memory holds anything.
  void reset(std::size_t samples);
  void set_replaced(std::vector<std::size_t> samples) { replaced_ = std::move(samples); }

 private:
  std::shared_ptr<std::byte> memory_;
  std::size_t floats_;
  float* images_;
  std::int64_t* labels_;
  std::size_t size_;
  std::vector<std::size_t> replaced_;
};

class BatchPool;

struct ReturnToPool {
  std::shared_ptr<BatchPool> pool;
  void operator()(BatchData* batch) const noexcept;
};

/// A batch in use. Destroying it, on any thread and also after its loader, gives its memory back.
using Batch = std::unique_ptr<BatchData, ReturnToPool>;

/// Batches of one size. Makes another one where all are in use, so taking never waits.
///
/// Thread rule: any thread.
class BatchPool : public std::enable_shared_from_this<BatchPool> {
 public:
  BatchPool(std::size_t samples, std::size_t floats_a_sample, BatchAllocator allocator);

  Batch take(std::size_t samples);

 private:
  friend struct ReturnToPool;

  const std::size_t samples_;
  const std::size_t floats_;
  const BatchAllocator allocator_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<BatchData>> free_;  // guarded by mutex_
};

}  // namespace vision
