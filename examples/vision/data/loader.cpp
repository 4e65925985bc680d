#include "examples/vision/data/loader.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace vision {
namespace {

const LoaderOptions& checked(const LoaderOptions& options) {
  const auto refuse = [](const char* what, auto value, const char* expected) {
    throw std::invalid_argument(std::string("Loader: ") + what + " is " + std::to_string(value) +
                                "; expected " + expected);
  };
  if (options.batch < 1) {
    refuse("batch", options.batch, "at least 1");
  }
  if (options.workers < 0 || options.workers > 1024) {
    refuse("workers", options.workers, "0 to 1024");
  }
  if (options.prefetch < 1 || options.prefetch > 1024) {
    refuse("prefetch", options.prefetch, "1 to 1024");
  }
  return options;
}

}  // namespace

/// What each thread has for itself.
struct Loader::Worker {
  explicit Worker(const TransformOptions& options) : transform(options) {}

  Transform transform;
  std::vector<std::uint8_t> encoded;
};

/// One batch in preparation. A worker that has claimed samples keeps a reference: it is not
/// destroyed before `done` reaches the batch's size.
struct Loader::Step {
  std::size_t first;  ///< place of its first sample in the list
  Batch batch;
  std::size_t claimed = 0;
  std::size_t done = 0;
  std::vector<std::size_t> replaced = {};
  std::exception_ptr error = {};  ///< that of the lowest sample
  std::size_t error_sample = 0;

  void fail(std::size_t sample, std::exception_ptr what) {
    if (!error || sample < error_sample) {
      error = std::move(what);
      error_sample = sample;
    }
  }
};

Loader::Loader(const Dataset& dataset, const TransformOptions& transform,
               const LoaderOptions& options)
    : dataset_(dataset), transform_(transform), options_(checked(options)) {
  caller_ = std::make_unique<Worker>(transform_);
  image_size_ = caller_->transform.output_size();
  pool_ = std::make_shared<BatchPool>(options_.batch, caller_->transform.output_floats(),
                                      options_.allocator);
  for (int i = 0; i < options_.workers; ++i) {
    workers_.emplace_back([this, worker = std::make_unique<Worker>(transform_)](
                              const std::stop_token& stop) { run(*worker, stop); });
  }
}

Loader::~Loader() {
  for (std::jthread& worker : workers_) {
    worker.request_stop();
  }
}

std::size_t Loader::steps() const {
  const std::size_t whole = indices_.size() / options_.batch;
  return whole + (!options_.drop_last && indices_.size() % options_.batch != 0 ? 1 : 0);
}

std::size_t Loader::bad_images() const {
  const std::lock_guard lock(bad_mutex_);
  return bad_.size();
}

void Loader::start(std::uint64_t epoch, std::vector<std::size_t> indices, std::size_t first_step) {
  for (const std::size_t index : indices) {
    if (index >= dataset_.size()) {
      throw std::invalid_argument("Loader: index " + std::to_string(index) + " of " +
                                  dataset_.title() + ", which has " +
                                  std::to_string(dataset_.size()) + " images");
    }
  }
  std::unique_lock lock(mutex_);
  cancel(lock);
  epoch_ = epoch;
  indices_ = std::move(indices);
  failure_ = nullptr;
  waited_ = 0;
  if (first_step > steps()) {
    const std::size_t count = steps();
    indices_.clear();
    throw std::invalid_argument("Loader: an epoch of " + std::to_string(count) +
                                " steps cannot begin at step " + std::to_string(first_step));
  }
  next_step_ = first_step;
  cancelled_ = false;
  prefetch();
}

Batch Loader::next() {
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  const auto begin = std::chrono::steady_clock::now();
  Batch batch;
  try {
    batch = wait_for_front();
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return batch;
}

Batch Loader::wait_for_front() {
  std::unique_lock lock(mutex_);
  if (steps_.empty()) {
    return {};
  }
  if (workers_.empty()) {
    Step& step = steps_.front();
    lock.unlock();
    prepare(*caller_, step, 0, step.batch->size());
    lock.lock();
  } else {
    progress_.wait(lock, [this] { return steps_.front().done == steps_.front().batch->size(); });
  }
  Step step = std::move(steps_.front());
  steps_.pop_front();
  if (step.error) {
    cancel(lock);
    lock.unlock();
    std::rethrow_exception(std::exchange(step.error, nullptr));
  }
  prefetch();
  lock.unlock();
  std::sort(step.replaced.begin(), step.replaced.end());
  step.batch->set_replaced(std::move(step.replaced));
  return std::move(step.batch);
}

// Begins preparing batches while there is room. mutex_ is held.
void Loader::prefetch() {
  const std::size_t most = workers_.empty() ? 1 : static_cast<std::size_t>(options_.prefetch);
  while (steps_.size() < most && next_step_ < steps()) {
    const std::size_t first = next_step_ * options_.batch;
    steps_.push_back(
        {.first = first, .batch = pool_->take(std::min(options_.batch, indices_.size() - first))});
    ++next_step_;
  }
  work_.notify_all();
}

// Drops all batches in preparation, after the workers have left them.
void Loader::cancel(std::unique_lock<std::mutex>& lock) {
  cancelled_ = true;
  progress_.wait(lock, [this] { return active_ == 0; });
  steps_.clear();
}

// Takes some samples of the first batch that has any left. Small groups keep all workers busy to a
// batch's end, and larger ones the lock free where samples are cheap. mutex_ is held.
bool Loader::claim(Step*& step, std::size_t& begin, std::size_t& end) {
  if (cancelled_) {
    return false;
  }
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

void Loader::run(Worker& worker, const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  Step* step = nullptr;
  std::size_t begin = 0;
  std::size_t end = 0;
  while (work_.wait(lock, stop, [&] { return claim(step, begin, end); }) &&
         !stop.stop_requested()) {
    ++active_;
    lock.unlock();
    prepare(worker, *step, begin, end);
    lock.lock();
    step->done += end - begin;
    --active_;
    progress_.notify_one();
  }
}

void Loader::prepare(Worker& worker, Step& step, std::size_t begin, std::size_t end) {
  for (std::size_t sample = begin; sample < end; ++sample) {
    std::exception_ptr error;
    bool replaced = false;
    try {
      replaced = load(worker, step, sample);
    } catch (...) {
      error = std::current_exception();
    }
    if (error || replaced) {
      const std::lock_guard lock(mutex_);
      if (error) {
        step.fail(sample, std::move(error));
      } else {
        step.replaced.push_back(sample);
      }
    }
  }
}

// Gives whether another image took the sample's place.
bool Loader::load(Worker& worker, Step& step, std::size_t sample) {
  const std::size_t place = step.first + sample;
  for (std::size_t moved = 0; moved < indices_.size(); ++moved) {
    const std::size_t index = indices_[(place + moved) % indices_.size()];
    try {
      load_image(worker, index, *step.batch, sample);
      return moved > 0;
    } catch (const BadImage& error) {
      if (options_.bad_images == BadImages::raise) {
        throw;
      }
      note_bad(index, error);
    }
  }
  throw std::runtime_error(
      "None of the " + std::to_string(indices_.size()) + " images of " + dataset_.title() +
      " that this rank was given can be read; the first is " + dataset_.where(indices_.front()));
}

void Loader::load_image(Worker& worker, std::size_t index, BatchData& batch, std::size_t sample) {
  const EncodedImage encoded = dataset_.encoded(index, worker.encoded);
  worker.transform.apply(encoded, dataset_.where(index), Random{options_.seed, epoch_, index},
                         batch.image(sample).data());
  batch.labels()[sample] = dataset_.label(index);
}

void Loader::note_bad(std::size_t index, const BadImage& error) {
  const std::lock_guard lock(bad_mutex_);
  if (bad_.insert(index).second && options_.log) {
    options_.log(error.what());
  }
}

}  // namespace vision
