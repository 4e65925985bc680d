#include "ops/cuda/stream.h"

#include <hora/error.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/base/log.h"

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

void DeviceGuard::try_emplace(std::optional<DeviceGuard>& guard, const CudaFunctions& functions,
                              int device) noexcept {
  try {
    guard.emplace(functions, device);
  } catch (const Error&) {
  }
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

namespace {

/// Copies longer than this go in steps: at 50 GB/s, 80 us each, far more than starting one takes.
constexpr std::size_t kBounceBytes = std::size_t{4} << 20;

}  // namespace

MemoryPool::MemoryPool(const CudaFunctions& functions, int device) {
  cudaMemPoolProps properties{};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {cudaMemLocationTypeDevice, device};
  cudaMemPool_t pool = nullptr;
  cuda_check(functions, functions.mem_pool_create(&pool, &properties), "cudaMemPoolCreate");
  pool_ = Owned<Release>(functions, pool);
  auto threshold = std::numeric_limits<std::uint64_t>::max();
  cuda_check(functions,
             functions.mem_pool_set_attribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold),
             "cudaMemPoolSetAttribute");
}

cudaMemPool_t StreamHeap::pool() {
  const LockGuard lock(making_);
  if (!pool_.get()) pool_ = MemoryPool(cuda_, device_);
  return pool_.get();
}

std::byte* StreamHeap::allocate(std::size_t bytes, std::optional<void*> stream) {
  if (bytes == 0) return nullptr;
  const DeviceGuard device(cuda_, device_);
  cudaMemPool_t const from = pool();
  void* data = nullptr;
  const auto take = [&] {
    return cuda_.malloc_from_pool_async(&data, bytes, from, or_own(stream));
  };
  cudaError_t error = take();
  if (error == cudaErrorMemoryAllocation) {
    cuda_.get_last_error();
    // Blocks too small for this one, as far as the host has seen their streams pass them.
    cuda_check_release(cuda_, cuda_.mem_pool_trim_to(from, 0), "cudaMemPoolTrimTo");
    if (const auto release = cache_release_.load()) release();
    error = take();
  }
  if (error == cudaErrorMemoryAllocation) {
    cuda_.get_last_error();
    throw Error(ErrorCode::out_of_memory,
                "cudaMallocFromPoolAsync of " + std::to_string(bytes) +
                    " bytes for a result failed: " + cuda_.get_error_string(error));
  }
  cuda_check(cuda_, error, "cudaMallocFromPoolAsync");
  return static_cast<std::byte*>(data);
}

void StreamHeap::release(std::byte* data, std::optional<void*> stream) noexcept {
  if (!data) return;
  std::optional<DeviceGuard> device;
  DeviceGuard::try_emplace(device, cuda_, device_);
  if (device) cuda_check_release(cuda_, cuda_.free_async(data, or_own(stream)), "cudaFreeAsync");
}

/// Through the pinned block. `what` is refused where the stream is being captured.
void StreamHeap::copy(std::byte* target, const std::byte* source, std::size_t bytes,
                      cudaMemcpyKind kind, void* stream, const char* what) {
  const LockGuard lock(copying_);
  const DeviceGuard device(cuda_, device_);
  auto* const of_caller = static_cast<cudaStream_t>(stream);
  refuse_capture(cuda_, of_caller, what);
  if (!bounce_.data()) bounce_ = PinnedMemory(cuda_, kBounceBytes);
  const bool to_device = kind == cudaMemcpyHostToDevice;
  for (std::size_t done = 0; done < bytes; done += kBounceBytes) {
    const std::size_t step = std::min(kBounceBytes, bytes - done);
    if (to_device) std::memcpy(bounce_.data(), source + done, step);
    cuda_check(
        cuda_,
        cuda_.memcpy_async(to_device ? target + done : bounce_.data(),
                           to_device ? bounce_.data() : source + done, step, kind, of_caller),
        "cudaMemcpyAsync of an exchange");
    const auto there = events_.take();
    there->record(of_caller);
    there->synchronize();
    if (!to_device) std::memcpy(target + done, bounce_.data(), step);
  }
}

void StreamHeap::to_host(std::byte* host, const std::byte* data, std::size_t bytes, void* stream) {
  copy(host, data, bytes, cudaMemcpyDeviceToHost, stream, "a collective over host memory");
}

void StreamHeap::to_device(std::byte* data, const std::byte* host, std::size_t bytes,
                           void* stream) {
  copy(data, host, bytes, cudaMemcpyHostToDevice, stream, "wait() for a result in host memory");
}

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
  if (session_) DeviceGuard::try_emplace(device, cuda_, device_);
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
