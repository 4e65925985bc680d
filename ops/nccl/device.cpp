#include "ops/nccl/device.h"

#include <hora/error.h>

#include <optional>
#include <string>
#include <utility>

#include "ops/cuda/stream.h"

namespace hora::internal {
namespace {

/// Interval at which events are queried, however often the engine polls.
constexpr auto kLookInterval = std::chrono::milliseconds(1);
/// Until the communicator has accepted its last call.
constexpr auto kRegistrationLimit = std::chrono::seconds(60);

std::string milliseconds(DeviceWatch::Time time) {
  return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count()) +
         " ms";
}

}  // namespace

void DeviceWatch::add(cudaStream_t stream) {
  if (pending_.size() < 2) pending_.push_back({events_.take(), {}});
  pending_.back().event->record(stream);
  pending_.back().since = clock_();
}

bool DeviceWatch::check() {
  if (pending_.empty()) return false;
  const Time time = clock_();
  if (time < next_look_) return true;
  next_look_ = time + kLookInterval;
  // A thread without a device of its own would take memory of the first one.
  const DeviceGuard device(cuda_, index_);
  communicators_.check_async();
  while (!pending_.empty() && pending_.front().event->query()) pending_.pop_front();
  if (pending_.empty()) return false;
  const Time waited = time - pending_.front().since;
  if (is_too_long(waited)) {
    throw Error(ErrorCode::transport,
                "a collective on the GPU has made no progress for " + milliseconds(waited) +
                    ": a peer is gone, or its GPU is stuck; it is aborted (HORA_DEVICE_TIMEOUT)");
  }
  return true;
}

void DeviceWatch::check_wait(Time since) const {
  const Time waited = clock_() - since;
  if (!is_too_long(waited)) return;
  throw Error(ErrorCode::transport,
              "a collective on the GPU has made no progress for " + milliseconds(waited) +
                  ": another rank of this node is gone, or stuck (HORA_DEVICE_TIMEOUT)");
}

bool NcclDevice::check() {
  const bool closes = communicators_.advance();
  return watch_.check() || closes;
}

std::shared_ptr<DeviceWork> NcclDevice::begin(void* stream, std::optional<void*> output_stream) {
  const DeviceGuard device(cuda_, index_);
  return std::make_shared<StreamOrder>(events_, stream, output_stream);
}

std::byte* NcclDevice::allocate(std::size_t bytes) {
  const DeviceGuard device(cuda_, index_);
  communicators_.world().wait_ready(std::chrono::steady_clock::now() + kRegistrationLimit);
  RegisteredMemory memory(nccl_, communicators_.world(), bytes);
  std::byte* const data = memory.data();
  buffers_.emplace(data, std::move(memory));
  return data;
}

void NcclDevice::release(std::byte* data) noexcept {
  std::optional<DeviceGuard> device;
  try {
    device.emplace(cuda_, index_);
  } catch (const Error&) {
    // CUDA has failed; its memory cannot be freed.
  }
  buffers_.erase(data);
}

}  // namespace hora::internal
