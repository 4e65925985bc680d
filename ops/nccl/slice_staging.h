/// The transfer of this rank's slice of a chunk from the GPU to the cross group and back.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "ops/cuda/device_trace.h"
#include "ops/cuda/memory.h"
#include "ops/cuda/stream.h"

namespace hora::internal {

struct StagedSlice {
  std::size_t slot = 0;
  std::span<std::byte> memory;  ///< the device's, in the slot's chunk; empty where it owns none
  UnitKey unit = {};            ///< whose it is
};

/// The slices of a group's slots. `stream` is the one that NCCL runs on. Nothing blocks the host.
/// Thread rule: as LocalGroup; the device is current.
class SliceStaging {
 public:
  virtual ~SliceStaging() = default;
  /// What the cross group works on, from the slot's take_out() or make_room() on.
  virtual std::byte* data(std::size_t slot) const = 0;
  /// The slice is complete once `stream` has done what it was given so far. When the event is
  /// reached the cross group may begin.
  virtual const Event& take_out(const StagedSlice& slice, cudaStream_t stream) = 0;
  /// The slice comes from the network alone, which may begin when the event is reached.
  virtual const Event& make_room(const StagedSlice& slice) = 0;
  /// The cross group is done: what `stream` is given from now on finds its result in the slice.
  virtual void bring_in(const StagedSlice& slice, cudaStream_t stream) = 0;
  /// `stream` has been given the last operation that reads the slot's chunk.
  virtual void leave(std::size_t slot, cudaStream_t stream) = 0;
};

/// Over pinned host memory, by copies on two streams of their own:
///
///   download stream:  slice -> staging
///   upload stream:                      staging -> slice
class PinnedStaging final : public SliceStaging {
 public:
  /// `bytes`: of the longest slice. The trace outlives it. Throws Error(out_of_memory).
  PinnedStaging(const CudaFunctions& cuda, std::size_t slots, std::size_t bytes,
                DeviceTrace& trace);

  std::byte* data(std::size_t slot) const override { return slots_[slot].memory.data(); }
  const Event& take_out(const StagedSlice& slice, cudaStream_t stream) override;
  const Event& make_room(const StagedSlice& slice) override;
  void bring_in(const StagedSlice& slice, cudaStream_t stream) override;
  void leave(std::size_t slot, cudaStream_t stream) override;

 private:
  struct PinnedSlot {
    PinnedMemory memory;
    Event complete;    ///< the slice, on NCCL's stream
    Event downloaded;  ///< memory has been written
    Event uploaded;    ///< memory has been read
    Event left;        ///< the chunk has been read
  };
  const CudaFunctions& cuda_;
  DeviceTrace& trace_;
  CudaStream download_;
  CudaStream upload_;
  std::vector<PinnedSlot> slots_;
};

/// The slice itself, for MPI that takes the GPU's memory. MPI knows no streams: it may read or
/// write only between an event that the engine has seen reached and the launch of what comes next.
class DeviceStaging final : public SliceStaging {
 public:
  DeviceStaging(const CudaFunctions& cuda, std::size_t slots);

  std::byte* data(std::size_t slot) const override { return slots_[slot].slice; }
  const Event& take_out(const StagedSlice& slice, cudaStream_t stream) override;
  const Event& make_room(const StagedSlice& slice) override;
  void bring_in(const StagedSlice&, cudaStream_t) override {}
  void leave(std::size_t slot, cudaStream_t stream) override;

 private:
  struct DeviceSlot {
    std::byte* slice = nullptr;
    Event complete;
    Event left;
  };
  std::vector<DeviceSlot> slots_;
};

}  // namespace hora::internal
