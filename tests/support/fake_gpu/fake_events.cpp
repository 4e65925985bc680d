#include <utility>

#include "tests/support/fake_gpu/fake_device.h"

namespace hora::internal::test {

bool FakeDevice::latest(cudaEvent_t event, std::shared_ptr<Record>& record) {
  {
    const std::scoped_lock lock(state_.mutex);
    const auto found = events_.find(event);
    if (found != events_.end()) {
      record = found->second.latest;
      return true;
    }
  }
  violation("not an event of this GPU, or a destroyed one");
  return false;
}

void FakeDevice::wait(const std::shared_ptr<Record>& record) {
  std::unique_lock lock(state_.mutex);
  state_.changed.wait(lock, [&] { return state_.stopping || record->done; });
}

cudaError_t FakeDevice::create_event(cudaEvent_t* event, bool timing) {
  if (!is_current("an event was made")) return cudaErrorInvalidDevice;
  *event = reinterpret_cast<cudaEvent_t>(next_handle());
  const std::scoped_lock lock(state_.mutex);
  events_.emplace(*event, FakeEvent{timing});
  if (timing) ++timing_events_;
  return cudaSuccess;
}

cudaError_t FakeDevice::destroy_event(cudaEvent_t event) {
  std::shared_ptr<Record> record;
  if (!latest(event, record)) {
    return cudaErrorInvalidResourceHandle;
  }
  const std::scoped_lock lock(state_.mutex);
  events_.erase(event);
  return cudaSuccess;
}

cudaError_t FakeDevice::record_event(cudaEvent_t event, cudaStream_t stream) {
  std::shared_ptr<Record> former;
  if (!latest(event, former) || !knows(stream)) {
    return cudaErrorInvalidResourceHandle;
  }
  const auto record = std::make_shared<Record>();
  {
    const std::scoped_lock lock(state_.mutex);
    FakeEvent& own = events_.at(event);
    own.capture = capture_of(stream);
    if (own.capture) return cudaSuccess;
    own.latest = record;
  }
  return enqueue(stream, script_.delay_of("event_record"), [this, record] {
    const std::scoped_lock lock(state_.mutex);
    record->done = true;
    record->time = std::chrono::steady_clock::now();
    state_.changed.notify_all();
  });
}

cudaError_t FakeDevice::wait_event(cudaStream_t stream, cudaEvent_t event) {
  std::shared_ptr<Record> record;
  if (!latest(event, record) || !knows(stream)) {
    return cudaErrorInvalidResourceHandle;
  }
  {
    const std::scoped_lock lock(state_.mutex);
    const auto of_event = events_.at(event).capture;
    const auto of_stream = capture_of(stream);
    if (of_event && !of_stream && stream != nullptr) {
      captures_[stream] = of_event;  // the stream joins the capture
      ++of_event->streams;
      return cudaSuccess;
    }
    if (of_stream != of_event) {
      for (const auto& capture : {of_stream, of_event}) {
        if (capture) capture->is_valid = false;
      }
      return cudaErrorStreamCaptureIsolation;
    }
  }
  if (!record) {
    return cudaSuccess;
  }
  return enqueue(stream, script_.delay_of("stream_wait_event"), [this, record] { wait(record); });
}

cudaError_t FakeDevice::query_event(cudaEvent_t event) {
  std::shared_ptr<Record> record;
  if (!latest(event, record)) {
    return cudaErrorInvalidResourceHandle;
  }
  if (is_captured(event)) return cudaErrorCapturedEvent;
  const std::scoped_lock lock(state_.mutex);
  return !record || record->done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t FakeDevice::synchronize_event(cudaEvent_t event) {
  std::shared_ptr<Record> record;
  if (!latest(event, record)) {
    return cudaErrorInvalidResourceHandle;
  }
  if (is_captured(event)) return cudaErrorCapturedEvent;
  if (record) {
    wait(record);
  }
  const std::scoped_lock lock(state_.mutex);
  return faulted_ ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t FakeDevice::elapsed_time(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  std::shared_ptr<Record> first;
  std::shared_ptr<Record> second;
  if (!latest(from, first) || !latest(to, second)) {
    return cudaErrorInvalidResourceHandle;
  }
  const std::scoped_lock lock(state_.mutex);
  if (!first || !second || !events_.at(from).timing || !events_.at(to).timing) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!first->done || !second->done) {
    return cudaErrorNotReady;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(second->time - first->time).count();
  return cudaSuccess;
}

}  // namespace hora::internal::test
