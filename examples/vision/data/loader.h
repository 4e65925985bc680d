/// Batches of a data set, prepared by worker threads ahead of the training loop.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "examples/vision/data/dataset.h"
#include "examples/vision/data/transform.h"

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
  /// One sample's.
  std::span<float> image(std::size_t sample) { return {images_ + sample * floats_, floats_}; }
  std::span<std::int64_t> labels() { return {labels_, size_}; }
  /// The samples, ascending, that hold another image, because the sampler's was bad.
  const std::vector<std::size_t>& replaced() const { return replaced_; }

 private:
  friend class Loader;

  std::shared_ptr<std::byte> memory_;
  std::size_t floats_;
  float* images_;
  std::int64_t* labels_;
  std::size_t size_;
  std::vector<std::size_t> replaced_;
};

/// Stays valid after its loader.
using Batch = std::shared_ptr<BatchData>;

/// Keeps each batch that a device still reads until the copy from it has ended.
///
/// Thread rule: one thread.
class CopiedBatches {
 public:
  /// Whether a copy has ended.
  using Ended = std::function<bool()>;

  CopiedBatches() = default;
  CopiedBatches(const CopiedBatches&) = delete;
  CopiedBatches& operator=(const CopiedBatches&) = delete;
  /// Waits for all copies; a batch of which `ended` throws is abandoned.
  ~CopiedBatches();

  void keep(Batch batch, Ended ended) { copies_.emplace_back(std::move(batch), std::move(ended)); }
  /// Frees the batches whose copies have ended. Never waits. Throws what an `ended` throws;
  /// its batch stays.
  void release();
  /// The memory is never freed: for a copy of which nobody knows when it ends.
  static void abandon(Batch batch);

 private:
  std::list<std::pair<Batch, Ended>> copies_;
};

struct LoaderOptions {
  std::size_t batch = 32;  ///< at least 1
  /// Threads that prepare samples; 0: next() does.
  int workers = 2;
  BadImages bad_images = BadImages::raise;
  std::uint64_t seed = 0;
  /// With BadImages::skip gets the text of each bad image once. Called by workers, one at a time.
  std::function<void(const std::string&)> log = {};
  BatchAllocator allocator = allocate_pageable;
};

/// A sample depends on (seed, epoch, its index in the data set) alone, and a batch on its step's
/// part of the list: not on the number of workers, on time, or on the step of the begin.
///
/// Thread rule: one thread at a time; `dataset`, which must outlive it, is read by the workers.
class Loader {
 public:
  Loader(const Dataset& dataset, const TransformOptions& transform, LoaderOptions options);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  /// At any moment: the workers finish the samples that they have begun. Batches stay valid.
  ~Loader();

  /// Begins an epoch at step `first_step`; what was left of the one before is dropped. `indices`:
  /// this rank's images, in order.
  void start(std::uint64_t epoch, std::vector<std::size_t> indices, std::size_t first_step = 0);

  /// Batches of the whole epoch, also where it began in its middle.
  std::size_t steps() const;

  /// The next batch, or null after the last one. Throws what a worker threw for a sample of this
  /// batch, that of the lowest place in it; then start() begins anew.
  Batch next();

  /// Seconds that next() took since start(): the time in which the caller had no data.
  double waited() const { return waited_; }
  ImageSize image_size() const { return transform_.output_size(); }

 private:
  struct Step;

  Batch wait_for_front();
  void run(Transform& transform, const std::stop_token& stop);
  bool claim(Step*& step, std::size_t& begin, std::size_t& end);
  void prepare(Transform& transform, Step& step, std::size_t begin, std::size_t end);
  bool load(Transform& transform, Step& step, std::size_t sample);
  void prefetch();
  void cancel(std::unique_lock<std::mutex>& lock);

  const Dataset& dataset_;
  const LoaderOptions options_;
  Transform transform_;  // of the caller, without workers

  // Written by start() while no worker has a sample.
  std::uint64_t epoch_ = 0;
  std::vector<std::size_t> indices_;

  std::mutex mutex_;
  std::condition_variable_any work_;
  std::condition_variable progress_;
  std::list<Step> steps_;      // guarded by mutex_: those in preparation or ready
  std::size_t next_step_ = 0;  // guarded by mutex_: to be put into steps_
  int active_ = 0;             // guarded by mutex_: workers that have samples
  bool cancelled_ = false;     // guarded by mutex_: no samples are given out
  std::set<std::size_t> bad_;  // guarded by mutex_: images that were logged

  double waited_ = 0;
  std::vector<std::jthread> workers_;
};

}  // namespace vision
