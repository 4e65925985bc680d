#include "tests/support/fake_gpu/fake_device.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <new>
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

constexpr std::align_val_t kAlignment{256};
constexpr int kPattern = 0xcb;

}  // namespace

FakeMemory::~FakeMemory() {
  for (const auto& [begin, block] : blocks_) {
    ::operator delete(const_cast<std::byte*>(begin), kAlignment);
  }
}

void* FakeMemory::allocate(MemoryKind kind, std::size_t bytes) {
  void* data = ::operator new(bytes, kAlignment);
  std::memset(data, kPattern, bytes);
  const std::scoped_lock lock(mutex_);
  blocks_.emplace(static_cast<std::byte*>(data), Block{kind, bytes});
  return data;
}

bool FakeMemory::release(MemoryKind kind, void* data) {
  const std::scoped_lock lock(mutex_);
  const auto found = blocks_.find(static_cast<std::byte*>(data));
  if (found == blocks_.end() || found->second.kind != kind) return false;
  blocks_.erase(found);
  ::operator delete(data, kAlignment);
  return true;
}

const FakeMemory::Block* FakeMemory::find(const void* data, std::size_t bytes) const {
  const auto* begin = static_cast<const std::byte*>(data);
  const auto found = blocks_.lower_bound(begin);  // the last block that begins at or before it
  if (found == blocks_.end()) return nullptr;
  const auto offset = static_cast<std::size_t>(begin - found->first);
  return offset <= found->second.bytes && bytes <= found->second.bytes - offset ? &found->second
                                                                                : nullptr;
}

MemoryUse FakeMemory::use(const std::vector<MemoryRange>& ranges) const {
  const std::scoped_lock lock(mutex_);
  MemoryUse users;
  for (const auto& [data, bytes] : ranges) {
    const Block* const block = bytes == 0 ? nullptr : find(data, bytes);
    if (block != nullptr) users.push_back(block->users);
  }
  return users;
}

bool FakeMemory::in_use(const void* data) const {
  const std::scoped_lock lock(mutex_);
  const auto found = blocks_.find(static_cast<const std::byte*>(data));
  return found != blocks_.end() && found->second.users.use_count() > 1;
}

bool FakeMemory::are(bool pinned, const std::vector<MemoryRange>& ranges) const {
  const std::scoped_lock lock(mutex_);
  return std::ranges::all_of(ranges, [&](const MemoryRange& range) {
    const Block* const block = find(range.first, range.second);
    return range.second == 0 || (block != nullptr && (block->kind == MemoryKind::pinned) == pinned);
  });
}

bool FakeMemory::is_block(MemoryKind kind, const void* data, std::size_t bytes) const {
  const std::scoped_lock lock(mutex_);
  const auto found = blocks_.find(static_cast<const std::byte*>(data));
  return found != blocks_.end() && found->second.kind == kind && bytes <= found->second.bytes;
}

void FakeMemory::count(LiveHandles& live) const {
  const std::scoped_lock lock(mutex_);
  for (const auto& [begin, block] : blocks_) {
    ++(block.kind == MemoryKind::pinned ? live.pinned : live.device);
  }
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
    const Lock lock(state_.mutex);
    state_.stopping = true;
    state_.changed.notify_all();
  }
  streams_.clear();
  retired_.clear();
}

void FakeDevice::hold(bool held) {
  const Lock lock(state_.mutex);
  state_.held = held;
  state_.changed.notify_all();
}

void FakeDevice::delay(std::chrono::microseconds least) {
  const Lock lock(state_.mutex);
  delay_ = least;
}

cudaError_t FakeDevice::violation(const std::string& text, cudaError_t error) {
  const Lock lock(state_.mutex);
  violations_.push_back("GPU " + std::to_string(number_) + ": " + text);
  return error;
}

cudaError_t FakeDevice::fault(const std::string& text) {
  const Lock lock(state_.mutex);
  return fault_ = violation(text, cudaErrorIllegalAddress);
}

LiveHandles FakeDevice::live() const {
  const Lock lock(state_.mutex);
  LiveHandles live{.streams = static_cast<int>(streams_.size()) - 1,  // but the null stream
                   .events = static_cast<int>(events_.size()),
                   .pools = static_cast<int>(pools_.size())};
  memory_.count(live);
  return live;
}

cudaError_t FakeDevice::begin(const std::string& call) {
  const int scripted = script_.begin(call);
  if (std::ranges::find(kWithoutContext, call) == kWithoutContext.end()) touch();
  if (scripted != 0) return static_cast<cudaError_t>(scripted);
  const cudaError_t capture = wait_while_capturing(call);
  return faulted() != cudaSuccess ? faulted() : capture;
}

cudaError_t FakeDevice::end(cudaError_t result) {
  const Lock lock(state_.mutex);
  if (result != cudaSuccess) own_thread().last_error = result;
  return result;
}

cudaError_t FakeDevice::take_last_error() {
  const Lock lock(state_.mutex);
  return std::exchange(own_thread().last_error, cudaSuccess);
}

std::uintptr_t FakeDevice::next_handle() {
  const Lock lock(state_.mutex);
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
  const Lock lock(state_.mutex);
  *index = own_thread().current.value_or(0);
  return cudaSuccess;
}

bool FakeDevice::has_current() {
  const Lock lock(state_.mutex);
  return own_thread().current.has_value();
}

cudaError_t FakeDevice::set_device(int index) {
  const Lock lock(state_.mutex);
  if (index < 0 || index > number_ + options_.peers) return cudaErrorInvalidDevice;
  own_thread().current = index;
  contexts_.insert(index);
  return cudaSuccess;
}

void FakeDevice::touch() {
  if (!has_current()) set_device(0);
}

bool FakeDevice::is_current(const std::string& what) {
  int now = 0;
  get_device(&now);
  if (now == number_) return true;
  violation(what + " while GPU " + std::to_string(now) + " is the thread's current one");
  return false;
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
  const Lock lock(state_.mutex);
  const auto found = captures_.find(stream);
  return found == captures_.end() ? nullptr : found->second;
}

cudaError_t FakeDevice::begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
  if (!find(stream)) return cudaErrorInvalidResourceHandle;
  const Lock lock(state_.mutex);
  if (capture_of(stream)) return cudaErrorIllegalState;
  captures_[stream] = std::make_shared<Capture>(Capture{mode, thread_number()});
  return cudaSuccess;
}

cudaError_t FakeDevice::end_capture(cudaStream_t stream) {
  const Lock lock(state_.mutex);
  const auto capture = capture_of(stream);
  if (!capture) return cudaErrorIllegalState;
  std::erase_if(captures_, [&](const auto& each) { return each.second == capture; });
  if (!capture->is_valid) return cudaErrorStreamCaptureInvalidated;
  return capture->streams == 1 ? cudaSuccess : cudaErrorStreamCaptureUnjoined;
}

cudaError_t FakeDevice::stream_is_capturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (!find(stream)) return cudaErrorInvalidResourceHandle;
  const Lock lock(state_.mutex);
  const auto capture = capture_of(stream);
  *status = !capture            ? cudaStreamCaptureStatusNone
            : capture->is_valid ? cudaStreamCaptureStatusActive
                                : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

cudaError_t FakeDevice::exchange_capture_mode(cudaStreamCaptureMode* mode) {
  const Lock lock(state_.mutex);
  std::swap(own_thread().mode, *mode);
  return cudaSuccess;
}

template <class Forbids>
cudaError_t FakeDevice::invalidate_captures(const Forbids& forbids) {
  const Lock lock(state_.mutex);
  cudaError_t result = cudaSuccess;
  for (const auto& [stream, capture] : captures_) {
    if (!forbids(stream, *capture)) continue;
    capture->is_valid = false;
    result = cudaErrorStreamCaptureUnsupported;
  }
  return result;
}

cudaError_t FakeDevice::wait_while_capturing(const std::string& call) {
  if (std::ranges::find(kUnsafe, call) == kUnsafe.end()) return cudaSuccess;
  const Lock lock(state_.mutex);
  const cudaStreamCaptureMode own = own_thread().mode;
  if (own == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  return invalidate_captures([&](cudaStream_t, const Capture& capture) {
    if (capture.mode == cudaStreamCaptureModeRelaxed) return false;
    return capture.thread == thread_number() ||
           (capture.mode == cudaStreamCaptureModeGlobal && own == cudaStreamCaptureModeGlobal);
  });
}

// Streams.

std::shared_ptr<FakeStream> FakeDevice::find(cudaStream_t stream) {
  if (stream == cudaStreamLegacy || stream == cudaStreamPerThread) stream = nullptr;
  if (stream == nullptr && !is_current("the null stream")) return nullptr;
  const Lock lock(state_.mutex);
  const auto found = streams_.find(stream);
  if (found != streams_.end()) return found->second;
  violation("not a stream of this GPU, or a destroyed one");
  return nullptr;
}

cudaError_t FakeDevice::stream_create(cudaStream_t* stream, unsigned, int) {
  if (!is_current("a stream was made")) return cudaErrorInvalidDevice;
  const Lock lock(state_.mutex);
  *stream = reinterpret_cast<cudaStream_t>(next_handle());
  streams_.emplace(*stream, std::make_shared<FakeStream>(state_));
  return cudaSuccess;
}

cudaError_t FakeDevice::stream_destroy(cudaStream_t stream) {
  const std::shared_ptr<FakeStream> found = stream == nullptr ? nullptr : find(stream);
  if (!found) return cudaErrorInvalidResourceHandle;
  found->retire();
  const Lock lock(state_.mutex);
  retired_.push_back(found);
  streams_.erase(stream);
  return cudaSuccess;
}

cudaError_t FakeDevice::stream_synchronize(cudaStream_t stream) {
  const std::shared_ptr<FakeStream> found = find(stream);
  if (!found) return cudaErrorInvalidResourceHandle;
  const cudaError_t captured =
      invalidate_captures([&](cudaStream_t each, const Capture&) { return each == stream; });
  if (captured != cudaSuccess) return captured;
  found->synchronize();
  return faulted();
}

cudaError_t FakeDevice::device_synchronize() {
  if (!is_current("the device was synchronised")) return cudaErrorInvalidDevice;
  const cudaError_t captured =
      invalidate_captures([](cudaStream_t, const Capture&) { return true; });
  if (captured != cudaSuccess) return captured;
  synchronize_all();
  return faulted();
}

void FakeDevice::synchronize_all() {
  std::vector<std::shared_ptr<FakeStream>> all;
  {
    const Lock lock(state_.mutex);
    all = retired_;
    for (const auto& [handle, stream] : streams_) all.push_back(stream);
  }
  for (const std::shared_ptr<FakeStream>& stream : all) stream->synchronize();
}

cudaError_t FakeDevice::enqueue(cudaStream_t stream, std::function<void()> work, MemoryUse use) {
  const Lock lock(state_.mutex);
  const std::shared_ptr<FakeStream> found = find(stream);
  if (!found) return cudaErrorInvalidResourceHandle;
  if (capture_of(stream)) return cudaSuccess;  // it becomes a part of the graph, and does not run
  found->enqueue([this, least = delay_, work = std::move(work), use = std::move(use)]() mutable {
    pause(least);
    work();
    use.clear();  // before the stream is seen to have done it
  });
  return cudaSuccess;
}

std::chrono::microseconds FakeDevice::random_delay() {
  const Lock lock(state_.mutex);
  using Distribution = std::uniform_int_distribution<std::chrono::microseconds::rep>;
  return std::chrono::microseconds(Distribution(0, options_.longest_delay.count())(generator_));
}

void FakeDevice::pause(std::chrono::microseconds least) {
  if (options_.longest_delay.count() > 0) least += random_delay();
  if (least.count() == 0) return;
  Lock lock(state_.mutex);
  // Other streams' changes wake it, too: the time counts, not the first wake-up.
  const auto end = std::chrono::steady_clock::now() + least;
  state_.changed.wait_until(lock, end, [this] { return state_.stopping; });
}

// Events.

FakeDevice::FakeEvent* FakeDevice::find(cudaEvent_t event) {
  const auto found = events_.find(event);
  if (found != events_.end()) return &found->second;
  violation("not an event of this GPU, or a destroyed one");
  return nullptr;
}

cudaError_t FakeDevice::to_wait_for(cudaEvent_t event, std::shared_ptr<Record>& record) {
  const Lock lock(state_.mutex);
  const FakeEvent* const found = find(event);
  if (found == nullptr) return cudaErrorInvalidResourceHandle;
  record = found->latest;
  if (!found->capture) return cudaSuccess;
  found->capture->is_valid = false;
  return cudaErrorCapturedEvent;
}

void FakeDevice::wait(const std::shared_ptr<Record>& record) {
  Lock lock(state_.mutex);
  state_.changed.wait(lock, [&] { return state_.stopping || record->done; });
}

cudaError_t FakeDevice::event_create(cudaEvent_t* event, unsigned flags) {
  if (!is_current("an event was made")) return cudaErrorInvalidDevice;
  const Lock lock(state_.mutex);
  *event = reinterpret_cast<cudaEvent_t>(next_handle());
  events_.emplace(*event, FakeEvent{.timing = (flags & cudaEventDisableTiming) == 0});
  return cudaSuccess;
}

cudaError_t FakeDevice::event_destroy(cudaEvent_t event) {
  const Lock lock(state_.mutex);
  if (find(event) == nullptr) return cudaErrorInvalidResourceHandle;
  events_.erase(event);
  return cudaSuccess;
}

cudaError_t FakeDevice::event_record(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock(state_.mutex);
  FakeEvent* const own = find(event);
  if (own == nullptr || !knows(stream)) return cudaErrorInvalidResourceHandle;
  own->capture = capture_of(stream);
  if (own->capture) return cudaSuccess;
  own->latest = std::make_shared<Record>();
  return enqueue(stream, [this, record = own->latest] {
    const Lock now(state_.mutex);
    *record = {.done = true, .time = std::chrono::steady_clock::now()};
    state_.changed.notify_all();
  });
}

cudaError_t FakeDevice::stream_wait_event(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock(state_.mutex);
  const FakeEvent* const found = find(event);
  if (found == nullptr || !knows(stream)) return cudaErrorInvalidResourceHandle;
  const auto of_stream = capture_of(stream);
  if (found->capture && !of_stream && stream != nullptr) {
    captures_[stream] = found->capture;  // the stream joins the capture
    ++found->capture->streams;
    return cudaSuccess;
  }
  if (of_stream != found->capture) {
    for (const auto& capture : {of_stream, found->capture}) {
      if (capture) capture->is_valid = false;
    }
    return cudaErrorStreamCaptureIsolation;
  }
  if (!found->latest) return cudaSuccess;
  return enqueue(stream, [this, record = found->latest] { wait(record); });
}

cudaError_t FakeDevice::event_query(cudaEvent_t event) {
  std::shared_ptr<Record> record;
  const cudaError_t error = to_wait_for(event, record);
  if (error != cudaSuccess) return error;
  const Lock lock(state_.mutex);
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
  const Lock lock(state_.mutex);
  const FakeEvent* const first = find(from);
  const FakeEvent* const second = find(to);
  for (const FakeEvent* const event : {first, second}) {
    if (event == nullptr || !event->latest || !event->timing) return cudaErrorInvalidResourceHandle;
  }
  if (!first->latest->done || !second->latest->done) return cudaErrorNotReady;
  const auto time = second->latest->time - first->latest->time;
  *milliseconds = std::chrono::duration<float, std::milli>(time).count();
  return cudaSuccess;
}

// Pools, and allocations from them. There is no call that gives the default pool.

cudaError_t FakeDevice::of_pool(cudaMemPool_t pool) {
  if (pools().contains(pool)) return cudaSuccess;
  return violation("not a pool of this GPU, or a destroyed one");
}

cudaError_t FakeDevice::mem_pool_create(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  if (properties->allocType != cudaMemAllocationTypePinned ||
      properties->location.type != cudaMemLocationTypeDevice ||
      properties->location.id != number_ || properties->maxSize != 0) {
    return violation("a pool that is not of this GPU's memory, or of limited size");
  }
  const Lock lock(state_.mutex);
  *pool = reinterpret_cast<cudaMemPool_t>(next_handle());
  pools_.emplace(*pool, 0);
  return cudaSuccess;
}

cudaError_t FakeDevice::mem_pool_destroy(cudaMemPool_t pool) {
  const cudaError_t result = of_pool(pool);
  const Lock lock(state_.mutex);
  pools_.erase(pool);
  return result;
}

cudaError_t FakeDevice::mem_pool_set_attribute(cudaMemPool_t pool, cudaMemPoolAttr attribute,
                                               void* value) {
  if (attribute != cudaMemPoolAttrReleaseThreshold) return cudaErrorInvalidValue;
  const cudaError_t result = of_pool(pool);
  const Lock lock(state_.mutex);
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
  return enqueue(stream, [this, data] {
    if (memory_.in_use(data)) {
      fault("cudaFreeAsync of memory that other work still uses");
    } else if (!memory_.release(MemoryKind::ordered, data)) {
      fault("cudaFreeAsync of what is not from a pool");
    }
  });
}

}  // namespace hora::internal::test
