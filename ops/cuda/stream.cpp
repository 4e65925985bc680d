#include "ops/cuda/stream.h"

#include <hora/error.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/base/sync.h"

namespace hora::internal {

std::optional<int> make_current(const CudaFunctions& functions, int device) {
  CUcontext context = nullptr;
  // The driver's results are numbered as the runtime's.
  cuda_check(functions, static_cast<cudaError_t>(functions.ctx_get_current(&context)),
             "cuCtxGetCurrent");
  std::optional<int> before;
  if (context) {
    int current = 0;
    cuda_check(functions, functions.get_device(&current), "cudaGetDevice");
    if (current == device) return std::nullopt;
    before = current;
  }
  cuda_check(functions, functions.set_device(device), "cudaSetDevice");
  return before;
}

DeviceGuard::Current::~Current() {
  if (before) cuda_check_release(functions, functions.set_device(*before), "cudaSetDevice");
}

DeviceGuard::Relaxed::Relaxed(const CudaFunctions& table) : functions(table) {
  cuda_check(functions, functions.thread_exchange_stream_capture_mode(&before),
             "cudaThreadExchangeStreamCaptureMode");
}

DeviceGuard::Relaxed::~Relaxed() {
  cuda_check_release(functions, functions.thread_exchange_stream_capture_mode(&before),
                     "cudaThreadExchangeStreamCaptureMode");
}

void refuse_capture(const CudaFunctions& functions, cudaStream_t stream, std::string_view what) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t result = functions.stream_is_capturing(stream, &status);
  // The default stream, while another one that synchronises with it is being captured.
  const bool implicit = result == cudaErrorStreamCaptureImplicit;
  if (implicit) functions.get_last_error();
  if (!implicit) cuda_check(functions, result, "cudaStreamIsCapturing");
  if (!implicit && status == cudaStreamCaptureStatusNone) return;
  throw Error(ErrorCode::invalid_use,
              std::string(what) +
                  " was given a stream from which a CUDA graph is being captured; ranks agree on "
                  "collectives while they run, so they are no part of a graph: end the capture "
                  "before, or leave the collective out of it");
}

CudaStream::CudaStream(const CudaFunctions& functions, int priority) {
  cudaStream_t stream = nullptr;
  cuda_check(functions, functions.stream_create(&stream, cudaStreamNonBlocking, priority),
             "cudaStreamCreateWithPriority");
  stream_ = Owned<Release>(functions, stream);
}

Event::Event(const CudaFunctions& functions, TimeStamp time_stamp) {
  cudaEvent_t event = nullptr;
  const unsigned flags = time_stamp == TimeStamp::on ? cudaEventDefault : cudaEventDisableTiming;
  cuda_check(functions, functions.event_create(&event, flags), "cudaEventCreateWithFlags");
  event_ = Owned<Release>(functions, event);
}

void Event::record(cudaStream_t stream) {
  const CudaFunctions& functions = event_.functions();
  cuda_check(functions, functions.event_record(get(), stream), "cudaEventRecord");
}

bool Event::query() const {
  const CudaFunctions& functions = event_.functions();
  const cudaError_t result = functions.event_query(get());
  if (result == cudaErrorNotReady) {
    // CUDA keeps it as the last error, which the application's next check would return.
    functions.get_last_error();
    return false;
  }
  cuda_check(functions, result, "cudaEventQuery");
  return true;
}

void Event::synchronize() const {
  const CudaFunctions& functions = event_.functions();
  cuda_check(functions, functions.event_synchronize(get()), "cudaEventSynchronize");
}

void wait(cudaStream_t stream, const Event& event) {
  const CudaFunctions& functions = event.event_.functions();
  cuda_check(functions, functions.stream_wait_event(stream, event.get(), 0), "cudaStreamWaitEvent");
}

std::chrono::nanoseconds elapsed(const Event& from, const Event& to) {
  const CudaFunctions& functions = from.event_.functions();
  float milliseconds = 0.0F;
  cuda_check(functions, functions.event_elapsed_time(&milliseconds, from.get(), to.get()),
             "cudaEventElapsedTime");
  return std::chrono::nanoseconds(std::llround(static_cast<double>(milliseconds) * 1e6));
}

struct EventPool::State {
  State(const CudaFunctions& table, TimeStamp stamp) : functions(table), time_stamp(stamp) {}

  const CudaFunctions& functions;
  const TimeStamp time_stamp;
  Mutex mutex;
  std::size_t created HORA_GUARDED_BY(mutex) = 0;
  std::vector<std::unique_ptr<Event>> free HORA_GUARDED_BY(mutex);
};

EventPool::EventPool(const CudaFunctions& functions, std::size_t ready, TimeStamp time_stamp)
    : state_(std::make_shared<State>(functions, time_stamp)) {
  const LockGuard lock(state_->mutex);
  state_->free.reserve(ready);
  for (; state_->created < ready; ++state_->created) {
    state_->free.push_back(std::make_unique<Event>(functions, time_stamp));
  }
}

std::shared_ptr<Event> EventPool::take() {
  std::unique_ptr<Event> event;
  {
    const LockGuard lock(state_->mutex);
    if (!state_->free.empty()) {
      event = std::move(state_->free.back());
      state_->free.pop_back();
    } else {
      // Room for every event, so that giving one back cannot fail.
      state_->free.reserve(state_->created + 1);
      event = std::make_unique<Event>(state_->functions, state_->time_stamp);
      ++state_->created;
    }
  }
  return {event.release(), [state = state_](Event* returned) {
            std::unique_ptr<Event> owned(returned);
            const LockGuard lock(state->mutex);
            state->free.push_back(std::move(owned));
          }};
}

const CudaFunctions& EventPool::functions() const {
  return state_->functions;
}

StreamOrder::StreamOrder(EventPool& events, int device, void* stream,
                         std::optional<void*> output_stream)
    : events_(events), device_(device) {
  const DeviceGuard guard(events_.functions(), device_);
  const auto recorded = [&](void* own) {
    refuse_capture(events_.functions(), static_cast<cudaStream_t>(own), "a collective");
    auto event = events_.take();
    event->record(static_cast<cudaStream_t>(own));
    return event;
  };
  ready_ = recorded(stream);
  if (output_stream) output_ready_ = recorded(*output_stream);
}

void StreamOrder::wait_ready(void* stream) {
  wait(static_cast<cudaStream_t>(stream), *ready_);
  if (output_ready_) wait(static_cast<cudaStream_t>(stream), *output_ready_);
}

void StreamOrder::record_done(void* stream) {
  if (!done_) done_ = events_.take();
  done_->record(static_cast<cudaStream_t>(stream));
}

void StreamOrder::wait_done(void* stream) {
  if (!done_) return;
  const DeviceGuard guard(events_.functions(), device_);
  refuse_capture(events_.functions(), static_cast<cudaStream_t>(stream), "wait()");
  wait(static_cast<cudaStream_t>(stream), *done_);
}

void StreamOrder::synchronize() {
  if (!done_) return;
  const DeviceGuard guard(events_.functions(), device_);
  done_->synchronize();
}

}  // namespace hora::internal
