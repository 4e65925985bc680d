#include "ops/nccl/device_space.h"

#include <hora/error.h>

#include <optional>
#include <string>
#include <utility>

#include "ops/cuda/stream.h"

namespace hora::internal {
namespace {

class Reached final : public PendingWork {
 public:
  Reached(const CudaFunctions& cuda, int device, std::shared_ptr<Event> event)
      : cuda_(cuda), device_(device), event_(std::move(event)) {}
  bool poll() override {
    const DeviceGuard device(cuda_, device_);
    return event_->query();
  }

 private:
  const CudaFunctions& cuda_;
  int device_;
  std::shared_ptr<Event> event_;
};

}  // namespace

DeviceSpace::DeviceSpace(const CudaFunctions& cuda, int device, EventPool& events)
    : cuda_(cuda), device_(device), events_(events), stream_(cuda, kUrgentPriority) {}

std::byte* DeviceSpace::allocate(std::size_t bytes) {
  const DeviceGuard device(cuda_, device_);
  DeviceMemory memory(cuda_, bytes);
  std::byte* const data = memory.data();
  blocks_.emplace(data, std::move(memory));
  return data;
}

void DeviceSpace::release(std::byte* data) noexcept {
  std::optional<DeviceGuard> device;
  try {
    device.emplace(cuda_, device_);
  } catch (const Error&) {
    // CUDA has failed; its memory cannot be freed.
  }
  blocks_.erase(data);
}

Completion DeviceSpace::reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
                               std::byte* output, std::size_t count) {
  if (count == 0) return {};
  const DeviceGuard device(cuda_, device_);
  const DeviceReduction launch{.type = reduction.type,
                               .op = reduction.op,
                               .inputs = inputs,
                               .output = output,
                               .count = static_cast<std::int64_t>(count),
                               .scale = reduction.scale};
  cuda_check(cuda_, cuda_.device_reduce(launch, stream_.get()), "the kernel device_reduce");
  return reached();
}

Completion DeviceSpace::convert(DataType source, const std::byte* input, DataType target,
                                std::byte* output, std::size_t count) {
  if (count == 0) return {};
  const DeviceGuard device(cuda_, device_);
  const CopyPiece piece{
      .source = input, .target = output, .elements = static_cast<std::int64_t>(count)};
  const BatchedCopy copy{.pieces = {&piece, 1}, .source_type = source, .target_type = target};
  cuda_check(cuda_, cuda_.batched_copy(copy, stream_.get()), "the kernel batched_copy");
  return reached();
}

/// Complete when the stream has done what it was given so far.
Completion DeviceSpace::reached() {
  auto event = events_.take();
  event->record(stream_.get());
  return Completion(std::make_unique<Reached>(cuda_, device_, std::move(event)));
}

PointToPoint::Request DeviceLink::send(int to, int tag, std::span<const std::byte> bytes) {
  make_current(cuda_, device_);
  return link_.send(to, tag, bytes);
}

PointToPoint::Request DeviceLink::receive(int from, int tag, std::span<std::byte> bytes) {
  make_current(cuda_, device_);
  return link_.receive(from, tag, bytes);
}

bool DeviceLink::test(Request request) {
  make_current(cuda_, device_);
  return link_.test(request);
}

bool DeviceLink::cancel(Request receive) {
  return link_.cancel(receive);
}

}  // namespace hora::internal
