#include "ops/nccl/slice_staging.h"

#include "ops/cuda/functions.h"

namespace hora::internal {
namespace {

/// Rows of the timeline.
constexpr std::string_view kDownloadRow = "GPU: download";
constexpr std::string_view kUploadRow = "GPU: upload";

}  // namespace

PinnedStaging::PinnedStaging(const CudaFunctions& cuda, std::size_t slots, std::size_t bytes,
                             DeviceTrace& trace)
    : cuda_(cuda), trace_(trace), download_(cuda, kUrgentPriority), upload_(cuda, kUrgentPriority) {
  for (std::size_t i = 0; i < slots; ++i) {
    slots_.push_back(
        {PinnedMemory(cuda, bytes), Event(cuda), Event(cuda), Event(cuda), Event(cuda)});
  }
}

const Event& PinnedStaging::take_out(const StagedSlice& slice, cudaStream_t stream) {
  PinnedSlot& own = slots_[slice.slot];
  own.complete.record(stream);
  wait(download_.get(), own.complete);
  wait(download_.get(), own.uploaded);
  trace_.begin(download_.get(), {kDownloadRow, "download", slice.unit, slice.memory.size()});
  if (!slice.memory.empty()) {
    cuda_check(cuda_,
               cuda_.memcpy_async(own.memory.data(), slice.memory.data(), slice.memory.size(),
                                  cudaMemcpyDeviceToHost, download_.get()),
               "cudaMemcpyAsync from the device");
  }
  trace_.end(download_.get());
  own.downloaded.record(download_.get());
  return own.downloaded;
}

const Event& PinnedStaging::make_room(const StagedSlice& slice) {
  return slots_[slice.slot].uploaded;
}

void PinnedStaging::bring_in(const StagedSlice& slice, cudaStream_t stream) {
  PinnedSlot& own = slots_[slice.slot];
  wait(upload_.get(), own.left);
  trace_.begin(upload_.get(), {kUploadRow, "upload", slice.unit, slice.memory.size()});
  if (!slice.memory.empty()) {
    cuda_check(cuda_,
               cuda_.memcpy_async(slice.memory.data(), own.memory.data(), slice.memory.size(),
                                  cudaMemcpyHostToDevice, upload_.get()),
               "cudaMemcpyAsync to the device");
  }
  trace_.end(upload_.get());
  own.uploaded.record(upload_.get());
  wait(stream, own.uploaded);
}

void PinnedStaging::leave(std::size_t slot, cudaStream_t stream) {
  slots_[slot].left.record(stream);
}

DeviceStaging::DeviceStaging(const CudaFunctions& cuda, std::size_t slots) {
  for (std::size_t i = 0; i < slots; ++i) slots_.push_back({nullptr, Event(cuda), Event(cuda)});
}

const Event& DeviceStaging::take_out(const StagedSlice& slice, cudaStream_t stream) {
  DeviceSlot& own = slots_[slice.slot];
  own.slice = slice.memory.data();
  own.complete.record(stream);
  return own.complete;
}

const Event& DeviceStaging::make_room(const StagedSlice& slice) {
  slots_[slice.slot].slice = slice.memory.data();
  return slots_[slice.slot].left;
}

void DeviceStaging::leave(std::size_t slot, cudaStream_t stream) {
  slots_[slot].left.record(stream);
}

}  // namespace hora::internal
