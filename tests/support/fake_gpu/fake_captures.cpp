// Captures of streams into graphs: what they forbid, and what ends them with an error.
#include <algorithm>
#include <array>

#include "tests/support/fake_gpu/fake_device.h"

namespace hora::internal::test {
namespace {

/// Calls that the documentation of cudaThreadExchangeStreamCaptureMode calls potentially unsafe.
constexpr std::array<std::string_view, 8> kUnsafe{
    "event_query", "event_synchronize", "stream_synchronize", "device_synchronize", "malloc",
    "free",        "host_alloc",        "free_host"};

}  // namespace

std::shared_ptr<FakeDevice::Capture> FakeDevice::capture_of(cudaStream_t stream) const {
  const auto found = captures_.find(stream);
  return found == captures_.end() ? nullptr : found->second;
}

void FakeDevice::invalidate_all() {
  for (const auto& [stream, capture] : captures_) capture->is_valid = false;
}

bool FakeDevice::is_captured(cudaEvent_t event) {
  const std::scoped_lock lock(state_.mutex);
  const auto found = events_.find(event);
  if (found == events_.end() || !found->second.capture) return false;
  found->second.capture->is_valid = false;
  return true;
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

cudaError_t FakeDevice::is_capturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (!find(stream)) return cudaErrorInvalidResourceHandle;
  const std::scoped_lock lock(state_.mutex);
  const auto capture = capture_of(stream);
  *status = !capture            ? cudaStreamCaptureStatusNone
            : capture->is_valid ? cudaStreamCaptureStatusActive
                                : cudaStreamCaptureStatusInvalidated;
  return cudaSuccess;
}

void FakeDevice::exchange_capture_mode(cudaStreamCaptureMode* mode) {
  const std::scoped_lock lock(state_.mutex);
  std::swap(own_thread().mode, *mode);
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

}  // namespace hora::internal::test
