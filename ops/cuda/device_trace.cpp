#include "ops/cuda/device_trace.h"

#include <hora/error.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/base/log.h"
#include "ops/cuda/stream.h"

namespace hora::internal {
namespace {

constexpr auto kReferenceAge = std::chrono::seconds(1);
/// Phases that wait to be done; further ones are lost. Each holds two events.
constexpr std::size_t kMostPending = 4096;
constexpr int kNoPriority = 0;

/// True where the host's time of the reference is known now.
template <class Reference>
bool resolve(Reference& reference) {
  if (reference.host) return true;
  if (!reference.event->query()) return false;
  if (!reference.former) {
    reference.host = reference.called;
    return true;
  }
  if (!resolve(*reference.former)) return false;
  reference.host = host_time(reference.called, *reference.former->host,
                             elapsed(*reference.former->event, *reference.event));
  reference.former.reset();
  return true;
}

}  // namespace

DeviceTrace::Session::Session(const CudaFunctions& cuda)
    : events(cuda, 0, TimeStamp::on), stream(cuda, kNoPriority) {}

DeviceTrace::DeviceTrace(const Tracer& trace, const CudaFunctions& cuda, int device)
    : trace_(trace), cuda_(cuda), device_(device) {
  if (trace_.trace()) trace_.trace()->attach(*this);
}

DeviceTrace::~DeviceTrace() {
  if (trace_.trace()) trace_.trace()->detach(*this);
  drop();
}

void DeviceTrace::change(cudaStream_t stream, const std::optional<DevicePhase>& phase) {
  const LockGuard lock(mutex_);
  // The trace may have been stopped, and its events dropped, since the caller's check.
  if (!trace_.on() || failed_) return;
  try {
    record(stream, phase);
  } catch (const std::exception& error) {
    log().warn("the GPU is missing in the timeline from here on: {}", error.what());
    failed_ = true;
  }
}

void DeviceTrace::record(cudaStream_t stream, const std::optional<DevicePhase>& phase) {
  const auto open = open_.find(stream);
  if (open == open_.end() && !phase) return;
  const DeviceGuard device(cuda_, device_);
  if (phase) refresh_reference();
  EventPointer now = session_->events.take();
  now->record(stream);
  if (open != open_.end()) {
    pending_.push_back({std::move(open->second), now});
    open_.erase(open);
  }
  if (!phase) return;
  if (pending_.size() + open_.size() >= kMostPending) {
    ++lost_;
    return;
  }
  RowIndex subject = kNoRow;
  trace_.record([&](Recording& recording) { subject = recording.subject(phase->unit); });
  open_.emplace(stream, Open{*phase, subject, std::move(now), session_->reference});
}

void DeviceTrace::refresh_reference() {
  if (!session_) session_.emplace(cuda_);
  const TraceTime time = trace_now();
  if (session_->reference && time - session_->reference->called < kReferenceAge) return;
  auto next = std::make_shared<Reference>();
  next->event = session_->events.take();
  next->called = trace_now();
  next->event->record(session_->stream.get());
  next->former = std::move(session_->reference);
  session_->reference = std::move(next);
}

std::optional<DeviceTrace::PendingPhase> DeviceTrace::first() {
  const LockGuard lock(mutex_);
  if (pending_.empty() || failed_) return std::nullopt;
  return pending_.front();
}

/// False: not done yet.
bool DeviceTrace::hand_in(const PendingPhase& pending) {
  const Open& open = pending.open;
  if (!pending.end->query() || !resolve(*open.reference)) return false;
  // A stream's phases follow one another; but a new reference, or rounding, may move them a little.
  TraceTime& row_end = row_ends_[open.phase.row];
  const TraceTime begin =
      std::max(row_end, *open.reference->host + elapsed(*open.reference->event, *open.begin));
  row_end = begin + elapsed(*open.begin, *pending.end);
  trace_.trace()->record(
      [&](Recording& recording) { recording.device(open.phase, open.subject, begin, row_end); });
  return true;
}

bool DeviceTrace::collect() {
  try {
    std::optional<DeviceGuard> device;
    while (const auto pending = first()) {
      if (!device) device.emplace(cuda_, device_);
      if (!hand_in(*pending)) return true;
      const LockGuard lock(mutex_);
      pending_.pop_front();
    }
  } catch (const std::exception& error) {
    log().warn("the GPU is missing in the timeline from here on: {}", error.what());
    const LockGuard lock(mutex_);
    failed_ = true;
  }
  return false;
}

std::uint64_t DeviceTrace::drop() noexcept {
  const LockGuard lock(mutex_);
  std::optional<DeviceGuard> device;
  try {
    if (session_) device.emplace(cuda_, device_);
  } catch (const Error&) {
    // CUDA has failed; its events cannot be freed.
  }
  const std::uint64_t lost = lost_ + pending_.size() + open_.size();
  open_.clear();
  pending_.clear();
  session_.reset();
  row_ends_.clear();
  lost_ = 0;
  failed_ = false;
  return lost;
}

}  // namespace hora::internal
