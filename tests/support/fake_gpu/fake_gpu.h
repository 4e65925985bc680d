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

#include "ops/cuda/functions.h"
#include "ops/nccl/functions.h"

namespace hora::internal::test {

class NcclWorld;

/// The place where the communicators of several FakeGpus (ranks as threads of one process) meet.
/// Thread rule: any thread.
class FakeNcclWorld {
 public:
  FakeNcclWorld();
  ~FakeNcclWorld();

  /// Ranks that disagreed about a collective, and misuse of NCCL. Empty after a right program.
  std::vector<std::string> errors() const;

 private:
  friend class FakeGpu;
  std::shared_ptr<NcclWorld> world_;
};

struct FakeGpuOptions {
  std::uint64_t seed = 0;
  /// Each item of work on a stream starts after a random time up to this.
  std::chrono::microseconds longest_delay{0};
  /// A communicator is ready at this poll after all ranks have come.
  int initialisation_polls = 3;
  int peers = 0;  ///< other GPUs that the same process sees, after this one
  /// An abort by this rank makes its peers' communicators report ncclRemoteError, as it does where
  /// a network connects them; in a node they are told nothing.
  bool peers_notice_aborts = false;
  bool has_windows = true;  ///< false: the calls of NCCL 2.27 are missing
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
  explicit FakeGpu(FakeNcclWorld& world, const FakeGpuOptions& options = {});
  ~FakeGpu();
  FakeGpu(const FakeGpu&) = delete;
  FakeGpu& operator=(const FakeGpu&) = delete;

  /// CUDA's, and makes it the calling thread's current one.
  int index() const;
  void choose();
  /// Indices of the GPUs on which this rank has made contexts: its own, after a right program.
  std::vector<int> contexts() const;
  const CudaFunctions& cuda() const;
  const NcclFunctions& nccl() const;

  /// The nth call from now on (1: the next) of a member of CudaFunctions fails, once; nth 0: every
  /// call. Nothing is done by a call that fails, but that destroying and freeing always take place.
  void fail(std::string_view call, int nth, cudaError_t error);
  /// The same for NcclFunctions. "initialisation" is the background part of making a communicator,
  /// "window_registration" that of a window.
  void nccl_fail(std::string_view call, int nth, ncclResult_t error);
  /// Work that this call of either table puts on a stream takes at least so long.
  void delay(std::string_view call, std::chrono::microseconds duration);
  /// Streams begin no further work until resume().
  void hold();
  void resume();
  /// NCCL puts nothing on streams that it has not yet put there, until resume_launches().
  void hold_launches();
  void resume_launches();
  /// As cudaStreamBeginCapture and cudaStreamEndCapture, which hora never calls.
  cudaError_t begin_capture(cudaStream_t stream,
                            cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal);
  cudaError_t end_capture(cudaStream_t stream);
  /// Sets the result of ncclCommGetAsyncError from now on, of one communicator or of all.
  void async_error(ncclComm_t comm, ncclResult_t error);
  void async_error(ncclResult_t error);

  /// Calls of a member since the beginning.
  int count(std::string_view call) const;
  int nccl_count(std::string_view call) const;
  LiveHandles live() const;
  /// Bytes that each of the pools keeps when the device synchronises.
  std::vector<std::uint64_t> kept_by_pools() const;
  /// Events with a time stamp that were ever created.
  int timing_events() const;
  /// Whether all of [data, data + bytes) is memory of this GPU, in one block.
  bool owns(const void* data, std::size_t bytes) const;
  /// Handles that are not this GPU's, memory outside of any allocation (also when the work runs),
  /// copies from and to pageable host memory (which synchronise), misaligned elements; what is
  /// made, launched, or put on the null stream while another GPU is the thread's current one;
  /// memory freed while it is registered, or while work may still touch it that was asked for;
  /// registrations changed while NCCL's thread may read them. Such a call fails; where work has
  /// already begun, so do all later ones.
  std::vector<std::string> violations() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace hora::internal::test
