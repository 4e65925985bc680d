/// Staging in a GPU's memory, and the messages that go from and to it.
///
/// Device memory that NCCL may use directly.
#pragma once

#include <cstddef>
#include <map>
#include <memory>

#include "ops/cross/point_to_point.h"
#include "ops/cross/staging_space.h"
#include "ops/cuda/memory.h"
#include "ops/cuda/stream.h"
#include "ops/nccl/communicator.h"
#include "ops/nccl/functions.h"

namespace hora {

/// Move-only owner of memory from ncclMemAlloc, registered with a communicator that is ready. NCCL
/// works without the registration as well, only slower: where it fails, that is logged at debug
/// level. May outlive the communicator. Nothing is allocated for 0 bytes.
/// Thread rule: as NcclCommunicator.
class RegisteredMemory {
 public:
  RegisteredMemory() noexcept = default;
  /// Throws Error(out_of_memory) naming the bytes.
  RegisteredMemory(const NcclFunctions& functions, const NcclCommunicator& communicator,
                   std::size_t bytes);
  RegisteredMemory(RegisteredMemory&& other) noexcept;
  RegisteredMemory& operator=(RegisteredMemory&& other) noexcept;
  ~RegisteredMemory();

  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  bool registered() const noexcept { return handle_ != nullptr; }

 private:
  void release() noexcept;

  const NcclFunctions* functions_ = nullptr;
  std::shared_ptr<ncclComm_t> comm_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  void* handle_ = nullptr;
};

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
      : cuda_(cuda), device_(device), link_(link) {}

  int index() const override { return link_.index(); }
  int size() const override { return link_.size(); }
  Request send(int to, int tag, std::span<const std::byte> bytes) override;
  Request receive(int from, int tag, std::span<std::byte> bytes) override;
  bool test(Request request) override;

 private:
  void make_current() const;

  const CudaFunctions& cuda_;
  int device_;
  PointToPoint& link_;
};

}  // namespace hora
