#include "examples/vision/data/loader.h"

#include <algorithm>
#include <chrono>
#include <new>

namespace vision {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t prefetched = 2;  // batches in preparation or ready

std::size_t aligned(std::size_t bytes) {
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

std::shared_ptr<std::byte> allocate_pageable(std::size_t bytes) {
  constexpr std::align_val_t to{alignment};
  return {static_cast<std::byte*>(::operator new(bytes, to)),
          [](std::byte* memory) { ::operator delete(memory, to); }};
}

BatchData::BatchData(std::size_t samples, std::size_t floats_a_sample,
                     const BatchAllocator& allocator)
    : floats_(floats_a_sample), size_(samples) {
  const std::size_t image_bytes = aligned(samples * floats_ * sizeof(float));
  memory_ = allocator(image_bytes + samples * sizeof(std::int64_t));
  images_ = reinterpret_cast<float*>(memory_.get());
  labels_ = reinterpret_cast<std::int64_t*>(memory_.get() + image_bytes);
}

CopiedBatches::~CopiedBatches() {
  for (auto& [batch, ended] : copies_) {
    try {
      while (!ended()) std::this_thread::yield();
    } catch (...) {
      abandon(std::move(batch));
    }
  }
}

void CopiedBatches::release() {
  copies_.remove_if([](const auto& copy) { return copy.second(); });
}

void CopiedBatches::abandon(Batch batch) {
  static_cast<void>(new Batch(std::move(batch)));
}

/// One batch in preparation. A worker that has claimed samples keeps a reference: it is not
/// destroyed before `done` reaches the batch's size.
struct Loader::Step {
  std::size_t first;  ///< place of its first sample in the list
  Batch batch;
  std::size_t claimed = 0;
  std::size_t done = 0;
  std::exception_ptr error = {};  ///< that of the lowest sample
  std::size_t error_sample = 0;
};

Loader::Loader(const Dataset& dataset, const TransformOptions& transform, LoaderOptions options)
    : dataset_(dataset), options_(std::move(options)), transform_(transform) {
  for (int i = 0; i < options_.workers; ++i) {
    workers_.emplace_back([this, own = std::make_unique<Transform>(transform)](
                              const std::stop_token& stop) { run(*own, stop); });
  }
}

Loader::~Loader() {
  for (std::jthread& worker : workers_) worker.request_stop();
}

std::size_t Loader::steps() const {
  return (indices_.size() + options_.batch - 1) / options_.batch;
}

void Loader::start(std::uint64_t epoch, std::vector<std::size_t> indices, std::size_t first_step) {
  std::unique_lock lock(mutex_);
  cancel(lock);
  epoch_ = epoch;
  indices_ = std::move(indices);
  waited_ = 0;
  next_step_ = first_step;
  cancelled_ = false;
  prefetch();
}

Batch Loader::next() {
  const auto begin = std::chrono::steady_clock::now();
  Batch batch = wait_for_front();
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return batch;
}

Batch Loader::wait_for_front() {
  std::unique_lock lock(mutex_);
  if (steps_.empty()) return {};
  if (workers_.empty()) {
    Step& step = steps_.front();
    lock.unlock();
    prepare(transform_, step, 0, step.batch->size());
    lock.lock();
  } else {
    progress_.wait(lock, [this] { return steps_.front().done == steps_.front().batch->size(); });
  }
  const Step step = std::move(steps_.front());
  steps_.pop_front();
  if (step.error) {
    cancel(lock);
    lock.unlock();
    std::rethrow_exception(step.error);
  }
  prefetch();
  lock.unlock();
  std::sort(step.batch->replaced_.begin(), step.batch->replaced_.end());
  return step.batch;
}

// Begins preparing batches while there is room. mutex_ is held.
void Loader::prefetch() {
  const std::size_t most = workers_.empty() ? 1 : prefetched;
  for (; steps_.size() < most && next_step_ < steps(); ++next_step_) {
    const std::size_t first = next_step_ * options_.batch;
    steps_.push_back(
        {.first = first,
         .batch = std::make_shared<BatchData>(std::min(options_.batch, indices_.size() - first),
                                              transform_.output_floats(), options_.allocator)});
  }
  work_.notify_all();
}

// Drops all batches, those in preparation after the workers have left them.
void Loader::cancel(std::unique_lock<std::mutex>& lock) {
  cancelled_ = true;
  progress_.wait(lock, [this] { return active_ == 0; });
  steps_.clear();
  next_step_ = steps();
}

// Takes some samples of the first batch that has any left. Small groups keep all workers busy to a
// batch's end, and larger ones the lock free where samples are cheap. mutex_ is held.
bool Loader::claim(Step*& step, std::size_t& begin, std::size_t& end) {
  if (cancelled_) return false;
  for (Step& candidate : steps_) {
    const std::size_t size = candidate.batch->size();
    if (candidate.claimed < size) {
      const std::size_t group = std::clamp<std::size_t>(size / (8 * workers_.size()), 1, 32);
      step = &candidate;
      begin = candidate.claimed;
      end = std::min(size, begin + group);
      candidate.claimed = end;
      return true;
    }
  }
  return false;
}

void Loader::run(Transform& transform, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  Step* step = nullptr;
  std::size_t begin = 0;
  std::size_t end = 0;
  while (work_.wait(lock, stop, [&] { return claim(step, begin, end); }) &&
         !stop.stop_requested()) {
    ++active_;
    lock.unlock();
    prepare(transform, *step, begin, end);
    lock.lock();
    step->done += end - begin;
    --active_;
    progress_.notify_one();
  }
}

void Loader::prepare(Transform& transform, Step& step, std::size_t begin, std::size_t end) {
  for (std::size_t sample = begin; sample < end; ++sample) {
    try {
      if (load(transform, step, sample)) {
        const std::lock_guard lock(mutex_);
        step.batch->replaced_.push_back(sample);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!step.error || sample < step.error_sample) {
        step.error = std::current_exception();
        step.error_sample = sample;
      }
    }
  }
}

// Returns whether another image took the sample's place.
bool Loader::load(Transform& transform, Step& step, std::size_t sample) {
  thread_local std::vector<std::uint8_t> memory;
  for (std::size_t moved = 0; moved < indices_.size(); ++moved) {
    const std::size_t index = indices_[(step.first + sample + moved) % indices_.size()];
    try {
      transform.apply(dataset_.encoded(index, memory), dataset_.where(index),
                      Random{options_.seed, epoch_, index}, step.batch->image(sample).data());
      step.batch->labels()[sample] = dataset_.label(index);
      return moved > 0;
    } catch (const BadImage& error) {
      if (options_.bad_images == BadImages::raise) throw;
      const std::lock_guard lock(mutex_);
      if (bad_.insert(index).second && options_.log) options_.log(error.what());
    }
  }
  throw std::runtime_error(
      "None of the " + std::to_string(indices_.size()) + " images of " + dataset_.title() +
      " that this rank was given can be read; the first is " + dataset_.where(indices_.front()));
}

}  // namespace vision
