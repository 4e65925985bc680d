/// Between nodes with slices that stay in GPU memory: staging there, the messages that go from and
/// to it, and the cross group on both.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "ops/cross/cross_group.h"
#include "ops/cross/cross_work.h"
#include "ops/cross/point_to_point.h"
#include "ops/cuda/stream.h"
#include "ops/nccl/communicator.h"
#include "ops/nccl/functions.h"
#include "ops/nccl/nccl_group.h"

namespace hora::internal {

/// Sums run on a stream of their own and end by an event that is polled; the host never waits.
/// Memory comes from cudaMalloc, for MPI libraries cannot share that of ncclMemAlloc between
/// processes. Thread rule: as StagingSpace.
class DeviceSpace final : public StagingSpace {
 public:
  /// References outlive it.
  DeviceSpace(const CudaFunctions& cuda, int device, EventPool& events);

  std::byte* allocate(std::size_t bytes) override;
  void release(std::byte* data) noexcept override;
  Completion reduce(const Reduction& reduction, std::span<const std::byte* const> inputs,
                    std::byte* output, std::size_t count) override;
  Completion convert(DataType source, const std::byte* input, DataType target, std::byte* output,
                     std::size_t count) override;

 private:
  Completion reached();

  const CudaFunctions& cuda_;
  int device_;
  EventPool& events_;
  CudaStream stream_;
  std::map<std::byte*, DeviceMemory> blocks_;
};

/// Makes the device the calling thread's current one before each call, and leaves it so: MPI's
/// copies of GPU memory go to the thread's current device (Open MPI's issue 627), also those that
/// it makes while the same thread asks for other messages. Thread rule: as PointToPoint.
class DeviceLink final : public PointToPoint {
 public:
  /// References outlive it.
  DeviceLink(const CudaFunctions& cuda, int device, PointToPoint& link)
      : PointToPoint(link.index(), link.size()), cuda_(cuda), device_(device), link_(link) {}

  Request send(int to, int tag, std::span<const std::byte> bytes) override;
  Request receive(int from, int tag, std::span<std::byte> bytes) override;
  bool test(Request request) override;
  bool cancel(Request receive) override;

 private:
  const CudaFunctions& cuda_;
  int device_;
  PointToPoint& link_;
};

/// The cross group of slices that stay in GPU memory, with what it is made of. Takes all its memory
/// when it is made. Thread rule: as CrossGroup.
class DeviceCross {
 public:
  /// `local`: the options of the NcclGroup beside it. References outlive it; `link` takes memory of
  /// the GPU.
  DeviceCross(const CudaFunctions& cuda, EventPool& events, const NcclGroupOptions& local,
              PointToPoint& link, const CrossOptions& options)
      : space_(cuda, local.device, events),
        link_(cuda, local.device, link),
        group_(link_, options, space_) {
    group_.reserve(local.slots, local.slice_bytes());
  }

  CrossGroup& group() { return group_; }

 private:
  DeviceSpace space_;
  DeviceLink link_;
  MessageCrossGroup group_;
};

}  // namespace hora::internal
