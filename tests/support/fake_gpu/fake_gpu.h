/// A GPU and an NCCL that need neither: "device memory" is host memory, and every stream is a
/// thread that runs its work in order. GPU k of a world has index k in every process, of which each
/// FakeGpu is one; each thread has a current GPU in each of them.
///
/// It is strict, so that tests see mistakes: see violations() and contexts(). Where
/// nothing is said, as the documentation of CUDA and the source of NCCL 2.28.9 have it:
/// * Communicators that block are refused. Collectives of several ranks get onto their streams by
///   another thread, after ncclGroupEnd has returned ncclInProgress; those of one rank at once.
/// * ncclCommAbort in an open group frees nothing before the group's end.
/// * A window of symmetric memory comes to be when all ranks have asked for one, of one length, and
///   with the same collectives and the same windows before it: memory is placed by that order. A
///   collective that has symmetric kernels is in windows on all ranks, at the same place, or on
///   none. A window that NCCL's thread may read, or that work uses, does not end.
/// * A captured stream runs nothing; what waits on another thread, cudaEventQuery included, ends
///   captures of the global mode, unless that thread's mode is relaxed.
/// It leaves out: the null stream does not wait for other streams; collectives of different
/// communicators never disturb each other; pools return no memory, and are never short of any.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
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
  FakeGpu& choose() {
    device_.set_device(index());
    return *this;
  }
  /// Indices of the GPUs on which this rank has made contexts: its own, after a right program.
  std::set<int> contexts() const { return device_.contexts(); }
  const CudaFunctions& cuda() const { return cuda_table_; }
  const NcclFunctions& nccl() const { return nccl_table_; }

  /// The nth call from now on (1: the next) of a member of CudaFunctions fails, once; nth 0: every
  /// call. Nothing is done by a call that fails, but that destroying and freeing always take place.
  void fail(const std::string& call, int nth, cudaError_t error) {
    device_.script().fail(call, nth, error);
  }
  /// The same for NcclFunctions. "initialisation" is the background part of making a communicator,
  /// "window_registration" that of a window.
  void nccl_fail(const std::string& call, int nth, ncclResult_t error) {
    nccl_.script().fail(call, nth, error);
  }
  /// Work that streams are given from now on takes at least so long.
  void delay(std::chrono::microseconds duration) { device_.delay(duration); }
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
  /// Sets the result of ncclCommGetAsyncError from now on, of all communicators.
  void async_error(ncclResult_t error) { nccl_.async_error(error); }

  /// Calls of a member since the beginning.
  int count(const std::string& call) const { return device_.script().count(call); }
  int nccl_count(const std::string& call) const { return nccl_.script().count(call); }
  LiveHandles live() const {
    LiveHandles live = device_.live();
    nccl_.count(live);
    return live;
  }
  /// The pools, and the bytes that each keeps when the device synchronises.
  std::map<cudaMemPool_t, std::uint64_t> pools() const { return device_.pools(); }
  /// Whether all of [data, data + bytes) is memory of this GPU, in one block.
  bool owns(const void* data, std::size_t bytes) const {
    return device_.memory().on_device({{data, bytes}});
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
