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
#include <string>
#include <thread>
#include <vector>

#include "examples/vision/data/bad_images.h"
#include "examples/vision/data/batch.h"
#include "examples/vision/data/dataset.h"
#include "examples/vision/data/transform.h"

namespace vision {

struct LoaderOptions {
  std::size_t batch = 32;
  /// Threads that prepare samples; 0: next() does.
  int workers = 2;
  /// Batches in preparation or ready, at least 1; without workers it has no effect.
  int prefetch = 2;
  /// A last batch of fewer samples is left out.
  bool drop_last = false;
  BadImages bad_images = BadImages::raise;
  std::uint64_t seed = 0;
  /// With BadImages::skip gets the text of each bad image once. Called by workers, one at a time.
  std::function<void(const std::string&)> log = {};
  BatchAllocator allocator = allocate_pageable;
};

/// A sample depends on (seed, epoch, its index in the data set) alone, and a batch on its step's
/// part of the list: not on the number of workers, on time, or on where in the epoch the loader
/// began.
///
/// Thread rule: one thread at a time; `dataset` is read by the workers.
class Loader {
 public:
  /// Throws std::invalid_argument, naming the value, for options out of their range, and
  /// std::system_error where a thread cannot be started. `dataset` must outlive the loader.
  Loader(const Dataset& dataset, const TransformOptions& transform, const LoaderOptions& options);
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;
  /// At any moment: the workers finish the samples that they have begun. Batches stay valid.
  ~Loader();

  /// Begins an epoch at step `first_step`; what was left of the one before is dropped. `indices`:
  /// this rank's images, in order. Throws std::invalid_argument for an index that the data set has
  /// not, and for a step after steps().
  void start(std::uint64_t epoch, std::vector<std::size_t> indices, std::size_t first_step = 0);

  /// Batches of the whole epoch, also where it began in its middle.
  std::size_t steps() const;

  /// The next batch, or null after the last one. Throws what a worker threw for a sample of this
  /// batch, that of the lowest place in it, also when called again; start() begins anew.
  Batch next();

  /// Seconds that next() took since start(): the time in which the caller had no data.
  double waited() const { return waited_; }
  /// Different images found bad so far.
  std::size_t bad_images() const;
  ImageSize image_size() const { return image_size_; }

 private:
  struct Worker;
  struct Step;

  Batch wait_for_front();
  void run(Worker& worker, const std::stop_token& stop);
  bool claim(Step*& step, std::size_t& begin, std::size_t& end);
  void prepare(Worker& worker, Step& step, std::size_t begin, std::size_t end);
  bool load(Worker& worker, Step& step, std::size_t sample);
  void load_image(Worker& worker, std::size_t index, BatchData& batch, std::size_t sample);
  void note_bad(std::size_t index, const BadImage& error);
  void prefetch();
  void cancel(std::unique_lock<std::mutex>& lock);

  const Dataset& dataset_;
  const TransformOptions transform_;
  const LoaderOptions options_;
  ImageSize image_size_;
  std::shared_ptr<BatchPool> pool_;

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

  mutable std::mutex bad_mutex_;
  std::set<std::size_t> bad_;  // guarded by bad_mutex_

  std::exception_ptr failure_;
  double waited_ = 0;
  std::unique_ptr<Worker> caller_;  // without workers
  std::vector<std::jthread> workers_;
};

}  // namespace vision
