#include "ops/nccl/slice_staging.h"

#include "ops/cuda/check.h"

namespace hora {

PinnedStaging::PinnedStaging(const CudaFunctions& cuda, std::size_t slots, std::size_t bytes)
    : cuda_(cuda), download_(cuda, kUrgentPriority), upload_(cuda, kUrgentPriority) {
  for (std::size_t i = 0; i < slots; ++i) {
    slots_.push_back(
        {PinnedMemory(cuda, bytes), Event(cuda), Event(cuda), Event(cuda), Event(cuda)});
  }
}

const Event& PinnedStaging::take_out(std::size_t slot, std::span<std::byte> slice,
                                     cudaStream_t stream) {
  Slot& own = slots_[slot];
  own.complete.record(stream);
  wait(download_.get(), own.complete);
  wait(download_.get(), own.uploaded);
  if (!slice.empty()) {
    cuda_check(cuda_,
               cuda_.memcpy_async(own.memory.data(), slice.data(), slice.size(),
                                  cudaMemcpyDeviceToHost, download_.get()),
               "cudaMemcpyAsync from the device");
  }
  own.downloaded.record(download_.get());
  return own.downloaded;
}

const Event& PinnedStaging::make_room(std::size_t slot, std::span<std::byte>) {
  return slots_[slot].uploaded;
}

void PinnedStaging::bring_in(std::size_t slot, std::span<std::byte> slice, cudaStream_t stream) {
  Slot& own = slots_[slot];
  wait(upload_.get(), own.left);
  if (!slice.empty()) {
    cuda_check(cuda_,
               cuda_.memcpy_async(slice.data(), own.memory.data(), slice.size(),
                                  cudaMemcpyHostToDevice, upload_.get()),
               "cudaMemcpyAsync to the device");
  }
  own.uploaded.record(upload_.get());
  wait(stream, own.uploaded);
}

void PinnedStaging::leave(std::size_t slot, cudaStream_t stream) {
  slots_[slot].left.record(stream);
}

DeviceStaging::DeviceStaging(const CudaFunctions& cuda, std::size_t slots) {
  for (std::size_t i = 0; i < slots; ++i) slots_.push_back({nullptr, Event(cuda), Event(cuda)});
}

const Event& DeviceStaging::take_out(std::size_t slot, std::span<std::byte> slice,
                                     cudaStream_t stream) {
  Slot& own = slots_[slot];
  own.slice = slice.data();
  own.complete.record(stream);
  return own.complete;
}

const Event& DeviceStaging::make_room(std::size_t slot, std::span<std::byte> slice) {
  slots_[slot].slice = slice.data();
  return slots_[slot].left;
}

void DeviceStaging::leave(std::size_t slot, cudaStream_t stream) {
  slots_[slot].left.record(stream);
}

}  // namespace hora
