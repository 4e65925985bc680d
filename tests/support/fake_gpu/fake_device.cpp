#include "tests/support/fake_gpu/fake_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <stdexcept>
#include <utility>

namespace hora::internal::test {
namespace {

constexpr std::array<std::string_view, 7> kWithoutContext{
    "get_last_error",  "get_device_count",      "get_device",           "set_device",
    "ctx_get_current", "get_device_properties", "device_get_pci_bus_id"};

/// Calls that the documentation of cudaThreadExchangeStreamCaptureMode calls potentially unsafe.
constexpr std::array<std::string_view, 8> kUnsafe{
    "event_query", "event_synchronize", "stream_synchronize", "device_synchronize", "malloc",
    "free",        "host_alloc",        "free_host"};

}  // namespace

void CallScript::add(const std::string& call) {
  const std::scoped_lock lock(mutex_);
  entries_[call];
}

const CallScript::Entry& CallScript::entry(std::string_view call) const {
  const auto found = entries_.find(call);
  if (found != entries_.end()) return found->second;
  throw std::invalid_argument("the fake GPU has no call named " + std::string(call));
}

CallScript::Entry& CallScript::entry(std::string_view call) {
  return const_cast<Entry&>(std::as_const(*this).entry(call));
}

int CallScript::begin(std::string_view call) {
  const std::scoped_lock lock(mutex_);
  Entry& called = entry(call);
  ++called.count;
  const auto found = called.errors.find(called.count);
  return found != called.errors.end() ? found->second : called.always;
}

int CallScript::count(std::string_view call) const {
  const std::scoped_lock lock(mutex_);
  return entry(call).count;
}

void CallScript::fail(std::string_view call, int nth, int error) {
  const std::scoped_lock lock(mutex_);
  Entry& scripted = entry(call);
  (nth == 0 ? scripted.always : scripted.errors[scripted.count + nth]) = error;
}

void CallScript::delay(std::string_view call, std::chrono::microseconds duration) {
  const std::scoped_lock lock(mutex_);
  entry(call).delay = duration;
}

std::chrono::microseconds CallScript::delay_of(std::string_view call) const {
  const std::scoped_lock lock(mutex_);
  return entry(call).delay;
}

FakeStream::FakeStream(StreamsState& state) : state_(state), thread_([this] { run(); }) {}

FakeStream::~FakeStream() {
  thread_.join();
}

void FakeStream::enqueue(std::function<void()> work) {
  const std::scoped_lock lock(state_.mutex);
  work_.push_back(std::move(work));
  ++enqueued_;
  state_.changed.notify_all();
}

void FakeStream::retire() {
  const std::scoped_lock lock(state_.mutex);
  retired_ = true;
  state_.changed.notify_all();
}

void FakeStream::synchronize() {
  std::unique_lock lock(state_.mutex);
  const std::uint64_t target = enqueued_;
  state_.changed.wait(lock, [&] { return state_.stopping || done_ >= target; });
}

void FakeStream::run() {
  std::unique_lock lock(state_.mutex);
  while (true) {
    state_.changed.wait(lock, [this] {
      return state_.stopping || (work_.empty() && retired_) || (!work_.empty() && !state_.held);
    });
    if (state_.stopping || work_.empty()) return;
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    lock.unlock();
    work();
    lock.lock();
    ++done_;
    state_.changed.notify_all();
  }
}

FakeDevice::FakeDevice(int number, const FakeGpuOptions& options)
    : number_(number),
      options_(options),
      generator_(options.seed + static_cast<std::uint64_t>(number)) {
  streams_.emplace(nullptr, std::make_shared<FakeStream>(state_));
}

void FakeDevice::stop() {
  {
    const std::scoped_lock lock(state_.mutex);
    state_.stopping = true;
    state_.changed.notify_all();
  }
  streams_.clear();
  retired_.clear();
}

void FakeDevice::hold(bool held) {
  const std::scoped_lock lock(state_.mutex);
  state_.held = held;
  state_.changed.notify_all();
}

void FakeDevice::violation(std::string text) {
  const std::scoped_lock lock(state_.mutex);
  violations_.push_back("GPU " + std::to_string(number_) + ": " + std::move(text));
}

void FakeDevice::fault(std::string text) {
  violation(std::move(text));
  const std::scoped_lock lock(state_.mutex);
  faulted_ = true;
}

std::vector<std::string> FakeDevice::violations() const {
  const std::scoped_lock lock(state_.mutex);
  return violations_;
}

cudaError_t FakeDevice::begin(std::string_view call) {
  const int scripted = script_.begin(call);
  if (std::ranges::find(kWithoutContext, call) == kWithoutContext.end()) touch();
  if (scripted != 0) return static_cast<cudaError_t>(scripted);
  const cudaError_t capture = wait_while_capturing(call);
  const cudaError_t fault = faulted();
  return fault != cudaSuccess ? fault : capture;
}

cudaError_t FakeDevice::faulted() const {
  const std::scoped_lock lock(state_.mutex);
  return faulted_ ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t FakeDevice::end(cudaError_t result) {
  const std::scoped_lock lock(state_.mutex);
  if (result != cudaSuccess) own_thread().last_error = result;
  return result;
}

cudaError_t FakeDevice::take_last_error() {
  const std::scoped_lock lock(state_.mutex);
  return std::exchange(own_thread().last_error, cudaSuccess);
}

std::uintptr_t FakeDevice::next_handle() {
  const std::scoped_lock lock(state_.mutex);
  // Never an address that exists, never null; the low numbers are CUDA's special streams.
  return (static_cast<std::uintptr_t>(number_ + 1) << 32) + (++handles_ << 4);
}

// Each thread's current GPU, and the contexts that this makes.

std::uint64_t thread_number() {
  static std::atomic<std::uint64_t> threads{0};
  thread_local const std::uint64_t own = ++threads;
  return own;
}

FakeDevice::ThreadState& FakeDevice::own_thread() {
  return threads_[thread_number()];
}

cudaError_t FakeDevice::get_device(int* index) {
  const std::scoped_lock lock(state_.mutex);
  *index = own_thread().current.value_or(0);
  return cudaSuccess;
}

bool FakeDevice::has_current() {
  const std::scoped_lock lock(state_.mutex);
  return own_thread().current.has_value();
}

cudaError_t FakeDevice::set_device(int index) {
  const std::scoped_lock lock(state_.mutex);
  if (index < 0 || index > number_ + options_.peers) return cudaErrorInvalidDevice;
  own_thread().current = index;
  contexts_.insert(index);
  return cudaSuccess;
}

void FakeDevice::touch() {
  if (!has_current()) set_device(0);
}

bool FakeDevice::is_current(std::string_view what) {
  int now = 0;
  get_device(&now);
  if (now == number_) return true;
  violation(std::string(what) + " while GPU " + std::to_string(now) +
            " is the thread's current one");
  return false;
}

std::vector<int> FakeDevice::contexts() const {
  const std::scoped_lock lock(state_.mutex);
  return {contexts_.begin(), contexts_.end()};
}

cudaError_t FakeDevice::get_device_count(int* count) {
  *count = number_ + 1 + options_.peers;
  return cudaSuccess;
}

cudaError_t FakeDevice::get_device_properties(cudaDeviceProp* properties, int index) {
  if (index != number_) return cudaErrorInvalidDevice;
  *properties = {};
  properties->uuid.bytes[0] = static_cast<char>(number_ + 1);
  return cudaSuccess;
}

cudaError_t FakeDevice::device_get_pci_bus_id(char* id, int length, int) {
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", number_ + 1);
  return cudaSuccess;
}

// Captures of streams into graphs: what they forbid, and what ends them with an error.

std::shared_ptr<FakeDevice::Capture> FakeDevice::capture_of(cudaStream_t stream) const {
  const auto found = captures_.find(stream);
  return found == captures_.end() ? nullptr : found->second;
}

cudaError_t FakeDevice::begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
  if (!find(stream)) return cudaErrorInvalidResourceHandle;
  const std::scoped_lock lock(state_.mutex);
  if (capture_of(stream)) return cudaErrorIllegalState;
  captures_[stream] = std::make_shared<Capture>(Capture{mode, thread_number()});
  return cudaSuccess;
}

cudaError_t FakeDevice::end_capture(cudaStream_t stream) {
  const std::scoped_lock lock(state_.mutex);
  const auto capture = capture_of(stream);
  if (!capture) return cudaErrorIllegalState;
  std::erase_if(captures_, [&](const auto& each) { return each.second == capture; });
  if (!capture->is_valid) return cudaErrorStreamCaptureInvalidated;
  return capture->streams == 1 ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}

cudaError_t FakeDevice::stream_is_capturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (!find(stream)) return cudaErrorInvalidResourceHandle;
  const std::scoped_lock lock(state_.mutex);
  const auto capture = capture_of(stream);
  *status = !capture            ? cudaStreamCaptureStatusNone
            : capture->is_valid ? cudaStreamCaptureStatusActive
                                : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

cudaError_t FakeDevice::exchange_capture_mode(cudaStreamCaptureMode* mode) {
  const std::scoped_lock lock(state_.mutex);
  std::swap(own_thread().mode, *mode);
  return cudaSuccess;
}

cudaError_t FakeDevice::wait_while_capturing(std::string_view call) {
  if (std::ranges::find(kUnsafe, call) == kUnsafe.end()) return cudaSuccess;
  const std::scoped_lock lock(state_.mutex);
  const cudaStreamCaptureMode own = own_thread().mode;
  if (own == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  cudaError_t result = cudaSuccess;
  for (const auto& [stream, capture] : captures_) {
    if (capture->mode == cudaStreamCaptureModeRelaxed) continue;
    const bool forbids =
        capture->thread == thread_number() ||
        (capture->mode == cudaStreamCaptureModeGlobal && own == cudaStreamCaptureModeGlobal);
    if (!forbids) continue;
    capture->is_valid = false;
    result = cudaErrorStreamCaptureUnsupported;
  }
  return result;
}

// Streams.

std::shared_ptr<FakeStream> FakeDevice::find(cudaStream_t stream) {
  if (stream == cudaStreamLegacy || stream == cudaStreamPerThread) stream = nullptr;
  if (stream == nullptr && !is_current("the null stream")) return nullptr;
  {
    const std::scoped_lock lock(state_.mutex);
    const auto found = streams_.find(stream);
    if (found != streams_.end()) return found->second;
  }
  violation("not a stream of this GPU, or a destroyed one");
  return nullptr;
}

cudaError_t FakeDevice::stream_create(cudaStream_t* stream, unsigned, int) {
  if (!is_current("a stream was made")) return cudaErrorInvalidDevice;
  *stream = reinterpret_cast<cudaStream_t>(next_handle());
  auto made = std::make_shared<FakeStream>(state_);
  const std::scoped_lock lock(state_.mutex);
  streams_.emplace(*stream, std::move(made));
  return cudaSuccess;
}

cudaError_t FakeDevice::stream_destroy(cudaStream_t stream) {
  const std::shared_ptr<FakeStream> found = stream == nullptr ? nullptr : find(stream);
  if (!found) return cudaErrorInvalidResourceHandle;
  found->retire();
  const std::scoped_lock lock(state_.mutex);
  retired_.push_back(found);
  streams_.erase(stream);
  return cudaSuccess;
}

cudaError_t FakeDevice::stream_synchronize(cudaStream_t stream) {
  const std::shared_ptr<FakeStream> found = find(stream);
  if (!found) return cudaErrorInvalidResourceHandle;
  {
    const std::scoped_lock lock(state_.mutex);
    if (const auto capture = capture_of(stream)) {
      capture->is_valid = false;
      return cudaErrorStreamCaptureUnsupported;
    }
  }
  found->synchronize();
  return faulted();
}

cudaError_t FakeDevice::device_synchronize() {
  if (!is_current("the device was synchronised")) return cudaErrorInvalidDevice;
  {
    const std::scoped_lock lock(state_.mutex);
    for (const auto& [stream, capture] : captures_) capture->is_valid = false;
    if (!captures_.empty()) return cudaErrorStreamCaptureUnsupported;
  }
  synchronize_all();
  return faulted();
}

void FakeDevice::synchronize_all() {
  std::vector<std::shared_ptr<FakeStream>> all;
  {
    const std::scoped_lock lock(state_.mutex);
    all = retired_;
    for (const auto& [handle, stream] : streams_) all.push_back(stream);
  }
  for (const std::shared_ptr<FakeStream>& stream : all) stream->synchronize();
}

cudaError_t FakeDevice::enqueue(cudaStream_t stream, std::chrono::microseconds delay,
                                std::function<void()> work, MemoryUse use) {
  const std::shared_ptr<FakeStream> found = find(stream);
  if (!found) return cudaErrorInvalidResourceHandle;
  {
    const std::scoped_lock lock(state_.mutex);
    if (capture_of(stream)) return cudaSuccess;  // it becomes a part of the graph, and does not run
  }
  found->enqueue([this, delay, work = std::move(work), use = std::move(use)]() mutable {
    pause(delay);
    work();
    use.clear();  // before the stream is seen to have done it
  });
  return cudaSuccess;
}

std::chrono::microseconds FakeDevice::random_delay() {
  const std::scoped_lock lock(state_.mutex);
  using Distribution = std::uniform_int_distribution<std::chrono::microseconds::rep>;
  return std::chrono::microseconds(Distribution(0, options_.longest_delay.count())(generator_));
}

void FakeDevice::pause(std::chrono::microseconds delay) {
  if (options_.longest_delay.count() > 0) delay += random_delay();
  if (delay.count() == 0) return;
  std::unique_lock lock(state_.mutex);
  // Other streams' changes wake it, too: the time counts, not the first wake-up.
  const auto end = std::chrono::steady_clock::now() + delay;
  state_.changed.wait_until(lock, end, [this] { return state_.stopping; });
}

int FakeDevice::streams() const {
  const std::scoped_lock lock(state_.mutex);
  return static_cast<int>(streams_.size()) - 1;  // but the null stream
}

int FakeDevice::events() const {
  const std::scoped_lock lock(state_.mutex);
  return static_cast<int>(events_.size());
}

int FakeDevice::timing_events() const {
  const std::scoped_lock lock(state_.mutex);
  return timing_events_;
}

// Events.

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

cudaError_t FakeDevice::to_wait_for(cudaEvent_t event, std::shared_ptr<Record>& record) {
  if (!latest(event, record)) return cudaErrorInvalidResourceHandle;
  const std::scoped_lock lock(state_.mutex);
  const auto found = events_.find(event);
  if (found == events_.end() || !found->second.capture) return cudaSuccess;
  found->second.capture->is_valid = false;
  return cudaErrorCapturedEvent;
}

void FakeDevice::wait(const std::shared_ptr<Record>& record) {
  std::unique_lock lock(state_.mutex);
  state_.changed.wait(lock, [&] { return state_.stopping || record->done; });
}

cudaError_t FakeDevice::event_create(cudaEvent_t* event, unsigned flags) {
  if (!is_current("an event was made")) return cudaErrorInvalidDevice;
  *event = reinterpret_cast<cudaEvent_t>(next_handle());
  const bool timing = (flags & cudaEventDisableTiming) == 0;
  const std::scoped_lock lock(state_.mutex);
  events_.emplace(*event, FakeEvent{timing});
  if (timing) ++timing_events_;
  return cudaSuccess;
}

cudaError_t FakeDevice::event_destroy(cudaEvent_t event) {
  std::shared_ptr<Record> record;
  if (!latest(event, record)) return cudaErrorInvalidResourceHandle;
  const std::scoped_lock lock(state_.mutex);
  events_.erase(event);
  return cudaSuccess;
}

cudaError_t FakeDevice::event_record(cudaEvent_t event, cudaStream_t stream) {
  std::shared_ptr<Record> former;
  if (!latest(event, former) || !knows(stream)) return cudaErrorInvalidResourceHandle;
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

cudaError_t FakeDevice::stream_wait_event(cudaStream_t stream, cudaEvent_t event, unsigned) {
  std::shared_ptr<Record> record;
  if (!latest(event, record) || !knows(stream)) return cudaErrorInvalidResourceHandle;
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
  if (!record) return cudaSuccess;
  return enqueue(stream, script_.delay_of("stream_wait_event"), [this, record] { wait(record); });
}

cudaError_t FakeDevice::event_query(cudaEvent_t event) {
  std::shared_ptr<Record> record;
  const cudaError_t error = to_wait_for(event, record);
  if (error != cudaSuccess) return error;
  const std::scoped_lock lock(state_.mutex);
  return !record || record->done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t FakeDevice::event_synchronize(cudaEvent_t event) {
  std::shared_ptr<Record> record;
  const cudaError_t error = to_wait_for(event, record);
  if (error != cudaSuccess) return error;
  if (record) wait(record);
  return faulted();
}

cudaError_t FakeDevice::event_elapsed_time(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  std::shared_ptr<Record> first;
  std::shared_ptr<Record> second;
  if (!latest(from, first) || !latest(to, second)) return cudaErrorInvalidResourceHandle;
  const std::scoped_lock lock(state_.mutex);
  if (!first || !second || !events_.at(from).timing || !events_.at(to).timing) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!first->done || !second->done) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(second->time - first->time).count();
  return cudaSuccess;
}

// Pools, and allocations from them. There is no call that gives the default pool.

cudaError_t FakeDevice::of_pool(cudaMemPool_t pool) {
  {
    const std::scoped_lock lock(state_.mutex);
    if (pools_.contains(pool)) return cudaSuccess;
  }
  violation("not a pool of this GPU, or a destroyed one");
  return cudaErrorInvalidValue;
}

std::vector<std::uint64_t> FakeDevice::kept_by_pools() const {
  const std::scoped_lock lock(state_.mutex);
  std::vector<std::uint64_t> kept;
  for (const auto& [pool, bytes] : pools_) kept.push_back(bytes);
  return kept;
}

cudaError_t FakeDevice::mem_pool_create(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  if (properties->allocType != cudaMemAllocationTypePinned ||
      properties->location.type != cudaMemLocationTypeDevice ||
      properties->location.id != number_ || properties->maxSize != 0) {
    violation("a pool that is not of this GPU's memory, or of limited size");
    return cudaErrorInvalidValue;
  }
  *pool = reinterpret_cast<cudaMemPool_t>(next_handle());
  const std::scoped_lock lock(state_.mutex);
  pools_.emplace(*pool, 0);
  return cudaSuccess;
}

cudaError_t FakeDevice::mem_pool_destroy(cudaMemPool_t pool) {
  const cudaError_t result = of_pool(pool);
  const std::scoped_lock lock(state_.mutex);
  pools_.erase(pool);
  return result;
}

cudaError_t FakeDevice::mem_pool_set_attribute(cudaMemPool_t pool, cudaMemPoolAttr attribute,
                                               void* value) {
  if (attribute != cudaMemPoolAttrReleaseThreshold) return cudaErrorInvalidValue;
  const cudaError_t result = of_pool(pool);
  const std::scoped_lock lock(state_.mutex);
  if (result == cudaSuccess) pools_[pool] = *static_cast<std::uint64_t*>(value);
  return result;
}

cudaError_t FakeDevice::mem_pool_trim_to(cudaMemPool_t pool, std::size_t) {
  return of_pool(pool);
}

cudaError_t FakeDevice::malloc_from_pool_async(void** data, std::size_t bytes, cudaMemPool_t pool,
                                               cudaStream_t stream) {
  if (!knows(stream)) return cudaErrorInvalidResourceHandle;
  const cudaError_t error = of_pool(pool);
  if (error != cudaSuccess) return error;
  *data = bytes == 0 ? nullptr : memory_.allocate(MemoryKind::ordered, bytes);
  return cudaSuccess;
}

/// Memory is there at once; it goes in the stream's order.
cudaError_t FakeDevice::free_async(void* data, cudaStream_t stream) {
  return enqueue(stream, {}, [this, data] {
    if (memory_.in_use(data)) {
      fault("cudaFreeAsync of memory that other work still uses");
    } else if (!memory_.release(MemoryKind::ordered, data)) {
      fault("cudaFreeAsync of what is not from a pool");
    }
  });
}

}  // namespace hora::internal::test
