/// A GPU and an NCCL that need neither: "device memory" is host memory, and every stream is a
/// thread that runs its work in order. GPU k of a world has index k in every process, of which each
/// FakeGpu is one; each thread has a current GPU in each of them.
///
/// What it is strict about, so that tests see mistakes: see violations() and contexts(). Where
/// nothing is said, as the documentation of CUDA and the source of NCCL 2.28.9 have it:
/// * Collectives of a non-blocking communicator with several ranks get onto their streams by
///   another thread, after ncclGroupEnd has returned ncclInProgress; those of one rank at once.
/// * ncclCommAbort in an open group frees nothing before the group's end.
/// * A window of symmetric memory comes to be when all ranks have asked for one, of one length, and
///   with the same collectives and the same windows before it: memory is placed by that order. A
///   collective that has symmetric kernels is in windows on all ranks, at the same place, or on
///   none. A window that NCCL's thread may read, or that work uses, does not end.
/// * A captured stream runs nothing; what waits on another thread, cudaEventQuery included, ends
///   captures of the global mode, unless that thread's mode is relaxed.
/// What it leaves out: the null stream does not wait for other streams; collectives of different
/// communicators never disturb each other; pools return no memory, and are never short of any.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/fake_gpu/fake_device.h"
#include "tests/support/fake_gpu/fake_nccl.h"

namespace hora::internal::test {

/// The place where the communicators of several FakeGpus (ranks as threads of one process) meet.
/// Thread rule: any thread.
class FakeNcclWorld {
 public:
  /// Ranks that disagreed about a collective, and misuse of NCCL. Empty after a right program.
  std::vector<std::string> errors() const { return world_->errors(); }

 private:
  friend class FakeGpu;
  std::shared_ptr<NcclWorld> world_ = std::make_shared<NcclWorld>();
};

/// Counts of handles made and not given back.
struct LiveHandles {
  int streams = 0;
  int events = 0;
  int pinned = 0;  ///< blocks of host memory
  int device = 0;  ///< blocks of device memory, ncclMemAlloc's too
  int communicators = 0;
  int registrations = 0;
  int windows = 0;
  int pools = 0;  ///< of memory
  bool operator==(const LiveHandles&) const = default;
};

/// One rank's GPU. Thread rule: any thread; the destructor ends all work, whatever it waits for.
class FakeGpu {
 public:
  explicit FakeGpu(FakeNcclWorld& world, const FakeGpuOptions& options = {})
      : device_(world.world_->next_gpu(), options), nccl_(world.world_, device_, options) {}
  ~FakeGpu() {
    // Streams that wait for other ranks first, then the streams' threads.
    nccl_.stop();
    device_.stop();
  }
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  /// CUDA's, and makes it the calling thread's current one.
  int index() const { return device_.number(); }
  void choose() { device_.set_device(index()); }
  /// Indices of the GPUs on which this rank has made contexts: its own, after a right program.
  std::vector<int> contexts() const { return device_.contexts(); }
  const CudaFunctions& cuda() const { return cuda_table_; }
  const NcclFunctions& nccl() const { return nccl_table_; }

  /// The nth call from now on (1: the next) of a member of CudaFunctions fails, once; nth 0: every
  /// call. Nothing is done by a call that fails, but that destroying and freeing always take place.
  void fail(std::string_view call, int nth, cudaError_t error) {
    device_.script().fail(call, nth, error);
  }
  /// The same for NcclFunctions. "initialisation" is the background part of making a communicator,
  /// "window_registration" that of a window.
  void nccl_fail(std::string_view call, int nth, ncclResult_t error) {
    nccl_.script().fail(call, nth, error);
  }
  /// Work that this call of either table puts on a stream takes at least so long.
  void delay(std::string_view call, std::chrono::microseconds duration) {
    CallScript& cuda = device_.script();
    (cuda.knows(call) ? cuda : nccl_.script()).delay(call, duration);
  }
  /// Streams begin no further work until resume().
  void hold() { device_.hold(true); }
  void resume() { device_.hold(false); }
  /// NCCL puts nothing on streams that it has not yet put there, until resume_launches().
  void hold_launches() { nccl_.hold_launches(true); }
  void resume_launches() { nccl_.hold_launches(false); }
  /// As cudaStreamBeginCapture and cudaStreamEndCapture, which hora never calls.
  cudaError_t begin_capture(cudaStream_t stream,
                            cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    return device_.begin_capture(stream, mode);
  }
  cudaError_t end_capture(cudaStream_t stream) { return device_.end_capture(stream); }
  /// Sets the result of ncclCommGetAsyncError from now on, of one communicator or of all.
  void async_error(ncclComm_t comm, ncclResult_t error) { nccl_.async_error(comm, error); }
  void async_error(ncclResult_t error) { nccl_.async_error(nullptr, error); }

  /// Calls of a member since the beginning.
  int count(std::string_view call) const { return device_.script().count(call); }
  int nccl_count(std::string_view call) const { return nccl_.script().count(call); }
  LiveHandles live() const {
    const FakeMemory& memory = device_.memory();
    return {.streams = device_.streams(),
            .events = device_.events(),
            .pinned = memory.blocks(MemoryKind::pinned),
            .device = memory.blocks(MemoryKind::device) + memory.blocks(MemoryKind::ordered) +
                      memory.blocks(MemoryKind::nccl),
            .communicators = nccl_.communicators(),
            .registrations = nccl_.registrations(),
            .windows = nccl_.windows(),
            .pools = static_cast<int>(kept_by_pools().size())};
  }
  /// Bytes that each of the pools keeps when the device synchronises.
  std::vector<std::uint64_t> kept_by_pools() const { return device_.kept_by_pools(); }
  /// Events with a time stamp that were ever created.
  int timing_events() const { return device_.timing_events(); }
  /// Whether all of [data, data + bytes) is memory of this GPU, in one block.
  bool owns(const void* data, std::size_t bytes) const {
    return device_.memory().on_device(data, bytes);
  }
  /// Handles that are not this GPU's, memory outside of any allocation (also when the work runs),
  /// copies from and to pageable host memory (which synchronise), misaligned elements; what is
  /// made, launched, or put on the null stream while another GPU is the thread's current one;
  /// memory freed while it is registered, or while work may still touch it that was asked for;
  /// registrations changed while NCCL's thread may read them. Such a call fails; where work has
  /// already begun, so do all later ones.
  std::vector<std::string> violations() const { return device_.violations(); }

 private:
  FakeDevice device_;
  FakeNccl nccl_;
  const CudaFunctions cuda_table_ = cuda_functions(device_);
  const NcclFunctions nccl_table_ = nccl_functions(nccl_);
};

}  // namespace hora::internal::test
