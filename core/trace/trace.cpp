#include "core/trace/trace.h"

#include <hora/error.h>
#include <hora/printable.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>

#include "core/base/log.h"

namespace hora::internal {
namespace {

/// Interval at which stop() polls a device.
constexpr auto kSourcePause = std::chrono::milliseconds(1);

ClockPair both_clocks() {
  return {trace_now(), std::chrono::system_clock::now().time_since_epoch()};
}

}  // namespace

TraceTime trace_now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

void Trace::start(const std::string& file, const TraceIdentity& identity) {
  const LockGuard control(control_mutex_);
  if (file_) {
    throw Error(ErrorCode::invalid_use,
                "a timeline is being written to " + in_quotes(file_->path()) +
                    " already: stop it before another is started",
                identity.rank);
  }
  file_.emplace(file, identity, both_clocks());
  {
    const LockGuard lock(mutex_);
    recording_.emplace(options_.events, options_.rows);
    stopping_ = false;
  }
  try {
    writer_ = std::thread([this] { run_writer(); });
  } catch (const std::exception&) {
    file_.reset();
    throw;
  }
  on_.store(true);
}

void Trace::stop() {
  const LockGuard control(control_mutex_);
  if (!file_) return;
  on_.store(false);
  {
    const LockGuard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  writer_.join();
  const std::string problem = file_->problem();
  file_.reset();
  if (!problem.empty()) throw Error(ErrorCode::transport, problem);
}

void Trace::close() noexcept {
  try {
    stop();
  } catch (const std::exception& error) {
    try {
      log().warn("{}", error.what());
    } catch (...) {
      // Logging has failed as well: the timeline is lost, nothing else.
    }
  }
}

void Trace::attach(TraceSource& source) {
  const LockGuard lock(sources_mutex_);
  sources_.push_back(&source);
}

void Trace::detach(TraceSource& source) noexcept {
  const LockGuard lock(sources_mutex_);
  std::erase(sources_, &source);
}

void Trace::run_writer() {
  EventBatch batch;
  while (true) {
    bool stopping = false;
    {
      const LockGuard lock(mutex_);
      wake_.wait_for(mutex_, options_.write_interval, [this]() HORA_REQUIRES(mutex_) {
        return stopping_ || recording_->buffer().half_full();
      });
      stopping = stopping_;
    }
    if (stopping) break;
    collect();
    write(batch);
  }
  finish_sources();
  write(batch);
  {
    const LockGuard lock(mutex_);
    recording_.reset();
  }
  file_->end(batch.dropped, trace_now());
}

void Trace::write(EventBatch& batch) {
  {
    const LockGuard lock(mutex_);
    recording_->buffer().take(batch);
  }
  file_->write(batch, trace_now());
}

bool Trace::collect() {
  const LockGuard lock(sources_mutex_);
  bool more = false;
  for (TraceSource* source : sources_) more |= source->collect();
  return more;
}

void Trace::finish_sources() {
  const auto limit = std::chrono::steady_clock::now() + options_.source_limit;
  while (collect() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(kSourcePause);
  }
  std::uint64_t lost = 0;
  {
    const LockGuard lock(sources_mutex_);
    for (TraceSource* source : sources_) lost += source->drop();
  }
  record([lost](Recording& recording) { recording.buffer().drop(lost); });
}

std::string this_thread_name() {
  const pid_t number = ::gettid();
  if (number == ::getpid()) return "main thread";
  std::array<char, 16> name{};  // the kernel's limit
  ::pthread_getname_np(::pthread_self(), name.data(), name.size());
  return "thread " + std::string(name.data()) + " " + std::to_string(number);
}

}  // namespace hora::internal
