#include "tests/support/fake_gpu/fake_device.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

namespace hora::internal::test {

FakeDevice::FakeDevice(int number, const FakeGpuOptions& options)
    : number_(number),
      options_(options),
      script_({"get_last_error",
               "get_device_count",
               "get_device",
               "set_device",
               "ctx_get_current",
               "device_synchronize",
               "get_device_properties",
               "device_get_pci_bus_id",
               "stream_create",
               "stream_destroy",
               "stream_synchronize",
               "stream_wait_event",
               "stream_is_capturing",
               "thread_exchange_stream_capture_mode",
               "event_create",
               "event_destroy",
               "event_record",
               "event_query",
               "event_synchronize",
               "event_elapsed_time",
               "host_alloc",
               "free_host",
               "malloc",
               "free",
               "mem_pool_create",
               "mem_pool_destroy",
               "mem_pool_set_attribute",
               "mem_pool_trim_to",
               "malloc_from_pool_async",
               "free_async",
               "memcpy_async",
               "memset_async",
               "batched_copy",
               "device_reduce",
               "batched_update"}),
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

std::string FakeDevice::bus_id() const {
  char id[32];
  std::snprintf(id, sizeof id, "0000:%02x:00.0", number_ + 1);
  return id;
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
  static constexpr std::array<std::string_view, 7> kWithoutContext{
      "get_last_error",  "get_device_count",      "get_device",           "set_device",
      "ctx_get_current", "get_device_properties", "device_get_pci_bus_id"};
  if (std::ranges::find(kWithoutContext, call) == kWithoutContext.end()) touch();
  if (scripted != 0) {
    return static_cast<cudaError_t>(scripted);
  }
  const cudaError_t capture = wait_while_capturing(call);
  const std::scoped_lock lock(state_.mutex);
  return faulted_ ? cudaErrorIllegalAddress : capture;
}

cudaError_t FakeDevice::end(cudaError_t result) {
  if (result != cudaSuccess) {
    const std::scoped_lock lock(state_.mutex);
    own_thread().last_error = result;
  }
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

std::shared_ptr<FakeStream> FakeDevice::find(cudaStream_t stream) {
  if (stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
    stream = nullptr;
  }
  if (stream == nullptr && !is_current("the null stream")) return nullptr;
  {
    const std::scoped_lock lock(state_.mutex);
    const auto found = streams_.find(stream);
    if (found != streams_.end()) {
      return found->second;
    }
  }
  violation("not a stream of this GPU, or a destroyed one");
  return nullptr;
}

bool FakeDevice::knows(cudaStream_t stream) {
  return find(stream) != nullptr;
}

cudaError_t FakeDevice::create_stream(cudaStream_t* stream) {
  if (!is_current("a stream was made")) return cudaErrorInvalidDevice;
  *stream = reinterpret_cast<cudaStream_t>(next_handle());
  auto made = std::make_shared<FakeStream>(state_);
  const std::scoped_lock lock(state_.mutex);
  streams_.emplace(*stream, std::move(made));
  return cudaSuccess;
}

cudaError_t FakeDevice::destroy_stream(cudaStream_t stream) {
  const std::shared_ptr<FakeStream> found = stream == nullptr ? nullptr : find(stream);
  if (!found) {
    return cudaErrorInvalidResourceHandle;
  }
  found->retire();
  const std::scoped_lock lock(state_.mutex);
  retired_.push_back(found);
  streams_.erase(stream);
  return cudaSuccess;
}

cudaError_t FakeDevice::synchronize_stream(cudaStream_t stream) {
  const std::shared_ptr<FakeStream> found = find(stream);
  if (!found) {
    return cudaErrorInvalidResourceHandle;
  }
  {
    const std::scoped_lock lock(state_.mutex);
    if (const auto capture = capture_of(stream)) {
      capture->is_valid = false;
      return cudaErrorStreamCaptureUnsupported;
    }
  }
  found->synchronize();
  const std::scoped_lock lock(state_.mutex);
  return faulted_ ? cudaErrorIllegalAddress : cudaSuccess;
}

cudaError_t FakeDevice::synchronize_device() {
  if (!is_current("the device was synchronised")) return cudaErrorInvalidDevice;
  {
    const std::scoped_lock lock(state_.mutex);
    if (!captures_.empty()) {
      invalidate_all();
      return cudaErrorStreamCaptureUnsupported;
    }
  }
  synchronize_all();
  const std::scoped_lock lock(state_.mutex);
  return faulted_ ? cudaErrorIllegalAddress : cudaSuccess;
}

void FakeDevice::synchronize_all() {
  std::vector<std::shared_ptr<FakeStream>> all;
  {
    const std::scoped_lock lock(state_.mutex);
    all = retired_;
    for (const auto& [handle, stream] : streams_) {
      all.push_back(stream);
    }
  }
  for (const std::shared_ptr<FakeStream>& stream : all) {
    stream->synchronize();
  }
}

cudaError_t FakeDevice::enqueue(cudaStream_t stream, std::chrono::microseconds delay,
                                std::function<void()> work, MemoryUse use) {
  const std::shared_ptr<FakeStream> found = find(stream);
  if (!found) {
    return cudaErrorInvalidResourceHandle;
  }
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
  std::unique_lock lock(state_.mutex);
  if (delay.count() > 0) {
    // Other streams' changes wake it, too: the time counts, not the first wake-up.
    const auto end = std::chrono::steady_clock::now() + delay;
    state_.changed.wait_until(lock, end, [this] { return state_.stopping; });
  }
}

int FakeDevice::streams() const {
  const std::scoped_lock lock(state_.mutex);
  return static_cast<int>(streams_.size()) - 1;  // but the null stream
}

int FakeDevice::timing_events() const {
  const std::scoped_lock lock(state_.mutex);
  return timing_events_;
}

int FakeDevice::events() const {
  const std::scoped_lock lock(state_.mutex);
  return static_cast<int>(events_.size());
}

}  // namespace hora::internal::test
