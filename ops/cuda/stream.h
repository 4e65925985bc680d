/// The device of a thread, its streams and events, and the order of work on them; memory on the GPU
/// and host memory that it can use, and the heap that collectives take from; and the device's part
/// of a timeline. Move-only owners.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string_view>

#include "core/base/sync.h"
#include "core/engine/interfaces.h"
#include "core/trace/trace.h"
#include "ops/cuda/functions.h"

namespace hora::internal {

/// Makes `device` this thread's current one. Returns the one that was current, if it was another; a
/// thread that has chosen none keeps `device`: going back to the first GPU would make a context
/// there, of some 500 MB.
std::optional<int> make_current(const CudaFunctions& functions, int device);

/// While it lives `device` is this thread's current one, and what the thread does to it leaves the
/// application's captures of other streams as they are: cudaEventQuery, on whatever thread, ends a
/// capture of cudaStreamCaptureModeGlobal with an error unless that thread's mode is relaxed.
class DeviceGuard {
 public:
  DeviceGuard(const CudaFunctions& functions, int device)
      : current_(functions, device), relaxed_(functions) {}
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  /// For what ends: `guard` stays empty where CUDA has failed.
  static void try_emplace(std::optional<DeviceGuard>& guard, const CudaFunctions& functions,
                          int device) noexcept;

 private:
  struct Current {
    Current(const CudaFunctions& table, int device)
        : functions(table), before(make_current(table, device)) {}
    ~Current();
    const CudaFunctions& functions;
    std::optional<int> before;
  };
  struct Relaxed {
    explicit Relaxed(const CudaFunctions& table);
    ~Relaxed();
    const CudaFunctions& functions;
    cudaStreamCaptureMode before = cudaStreamCaptureModeRelaxed;
  };
  Current current_;
  Relaxed relaxed_;
};

/// Throws Error(invalid_use) where a CUDA graph is being captured from `stream`. `what` begins the
/// text, as in "a collective".
void refuse_capture(const CudaFunctions& functions, cudaStream_t stream, std::string_view what);

/// Before the application's kernels that wait for a place on the device.
inline constexpr int kUrgentPriority = -1;

/// A stream that does not synchronise with the null stream. Destruction does not wait: work that
/// was enqueued still runs. Throws Error(transport) where CUDA fails.
/// Thread rule: one thread at a time; get() from any.
class CudaStream {
 public:
  CudaStream() noexcept = default;
  /// `priority` as CUDA counts: lower numbers go first, 0 is the default.
  CudaStream(const CudaFunctions& functions, int priority);

  cudaStream_t get() const noexcept { return stream_.get(); }

 private:
  struct Release {
    using Handle = cudaStream_t;
    static constexpr auto function = &CudaFunctions::stream_destroy;
    static constexpr auto name = "cudaStreamDestroy";
  };
  Owned<Release> stream_;
};

/// Whether an event records the time at which the stream reaches it; without, it is cheaper.
enum class TimeStamp : std::uint8_t { off, on };

/// A point in a stream's work. All members throw Error(transport) where CUDA fails. Thread rule:
/// one thread at a time records; any thread may query and wait.
class Event {
 public:
  Event() noexcept = default;
  explicit Event(const CudaFunctions& functions, TimeStamp time_stamp = TimeStamp::off);

  cudaEvent_t get() const noexcept { return event_.get(); }

  /// After all work that `stream` holds now. Work that waits already goes on waiting for the former
  /// record.
  void record(cudaStream_t stream);
  /// True where the work before the last record is done, or nothing was recorded yet. Never blocks.
  bool query() const;
  /// Blocks this thread for the GPU: not for the steady state.
  void synchronize() const;

 private:
  friend void wait(cudaStream_t stream, const Event& event);
  friend std::chrono::nanoseconds elapsed(const Event& from, const Event& to);
  struct Release {
    using Handle = cudaEvent_t;
    static constexpr auto function = &CudaFunctions::event_destroy;
    static constexpr auto name = "cudaEventDestroy";
  };
  Owned<Release> event_;
};

/// Work that is enqueued on `stream` from now on runs after the event's last record. Does not block
/// the host.
void wait(cudaStream_t stream, const Event& event);

/// The device's time between two events that are both done and have time stamps, in any order, to
/// about half a microsecond. CUDA counts in a float of milliseconds: exact to that for 4 s.
std::chrono::nanoseconds elapsed(const Event& from, const Event& to);

/// Lends events and takes them back, so that the steady state creates none. An event that comes
/// back may still be waited for by streams: these remember the record, not the event.
/// Thread rule: any thread.
class EventPool {
 public:
  /// `ready`: events that are made at once.
  explicit EventPool(const CudaFunctions& functions, std::size_t ready = 0,
                     TimeStamp time_stamp = TimeStamp::off);

  /// Returns to the pool with its last owner; may outlive this object.
  std::shared_ptr<Event> take();
  const CudaFunctions& functions() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

/// A null stream is the default one of the device, whatever device the calling thread has; the
/// streams of wait_ready() and record_done() are the device's own.
/// Thread rule: as DeviceWork.
class StreamOrder final : public DeviceWork {
 public:
  /// Records the caller's events on both streams. Throws Error(invalid_use) where one is being
  /// captured, as wait_done() does.
  StreamOrder(EventPool& events, int device, void* stream,
              std::optional<void*> output_stream = std::nullopt);

  void wait_ready(void* stream) override;
  void record_done(void* stream) override;
  void wait_done(void* stream) override;
  void synchronize() override;

 private:
  EventPool& events_;
  int device_;
  std::shared_ptr<Event> ready_;
  std::shared_ptr<Event> output_ready_;  ///< null: no stream of its own
  std::shared_ptr<Event> done_;          ///< null: nothing was done, such as for an empty tensor
};

struct DeviceMemoryKind {
  using Handle = void*;
  static constexpr auto function = &CudaFunctions::free;
  static constexpr auto name = "cudaFree";
  static constexpr auto call = "cudaMalloc";
  static cudaError_t allocate(const CudaFunctions& functions, void** data, std::size_t bytes) {
    return functions.malloc(data, bytes);
  }
};
struct PinnedMemoryKind {
  using Handle = void*;
  static constexpr auto function = &CudaFunctions::free_host;
  static constexpr auto name = "cudaFreeHost";
  static constexpr auto call = "cudaHostAlloc";
  static cudaError_t allocate(const CudaFunctions& functions, void** data, std::size_t bytes) {
    return functions.host_alloc(data, bytes, cudaHostAllocDefault);
  }
};

/// Allocating and freeing synchronise with the GPU: not for the steady state. Nothing is allocated
/// for 0 bytes. Thread rule: one thread at a time.
template <class Kind>
class CudaMemory {
 public:
  CudaMemory() noexcept = default;
  /// Throws Error(out_of_memory) naming the bytes.
  CudaMemory(const CudaFunctions& functions, std::size_t bytes) {
    if (bytes == 0) return;
    void* data = nullptr;
    const cudaError_t result = Kind::allocate(functions, &data, bytes);
    if (result != cudaSuccess) {
      throw_cuda_error(functions, result, fmt::format("{} of {} bytes", Kind::call, bytes));
    }
    memory_ = Owned<Kind>(functions, data);
    bytes_ = bytes;
  }

  std::byte* data() const noexcept { return static_cast<std::byte*>(memory_.get()); }
  std::size_t bytes() const noexcept { return memory_.get() ? bytes_ : 0; }

 private:
  Owned<Kind> memory_;
  std::size_t bytes_ = 0;
};

/// Memory of the GPU.
using DeviceMemory = CudaMemory<DeviceMemoryKind>;
/// Host memory that the GPU reads and writes directly (page-locked).
using PinnedMemory = CudaMemory<PinnedMemoryKind>;

/// Memory in stream order, apart from the device's default pool, which is the program's and its
/// libraries'. What is freed stays in the pool, where the default one gives it back to the system
/// at each synchronisation. Thread rule: any thread.
class MemoryPool {
 public:
  MemoryPool() noexcept = default;
  /// A pool of `device`. Throws Error(transport), as where the device has no pools.
  MemoryPool(const CudaFunctions& functions, int device);

  cudaMemPool_t get() const noexcept { return pool_.get(); }

 private:
  struct Release {
    using Handle = cudaMemPool_t;
    static constexpr auto function = &CudaFunctions::mem_pool_destroy;
    static constexpr auto name = "cudaMemPoolDestroy";
  };
  Owned<Release> pool_;
};

/// Allocating and releasing do not wait for the GPU. The pool is made with the first allocation,
/// the pinned block with the first copy. Thread rule: any thread; one copy at a time.
class StreamHeap final : public DeviceHeap {
 public:
  /// `own`: the stream that collectives run on. References outlive it, and so does the stream.
  StreamHeap(const CudaFunctions& cuda, int device, EventPool& events, cudaStream_t own)
      : cuda_(cuda), device_(device), events_(events), own_(own) {}

  std::byte* allocate(std::size_t bytes, std::optional<void*> stream) override;
  void release(std::byte* data, std::optional<void*> stream) noexcept override;
  void to_host(std::byte* host, const std::byte* data, std::size_t bytes, void* stream) override;
  void to_device(std::byte* data, const std::byte* host, std::size_t bytes, void* stream) override;
  void set_cache_release(void (*give_back)()) noexcept override { cache_release_.store(give_back); }

 private:
  cudaStream_t or_own(std::optional<void*> stream) const {
    return stream ? static_cast<cudaStream_t>(*stream) : own_;
  }
  cudaMemPool_t pool();
  void copy(std::byte* target, const std::byte* source, std::size_t bytes, cudaMemcpyKind kind,
            void* stream, const char* what);

  const CudaFunctions& cuda_;
  int device_;
  EventPool& events_;
  cudaStream_t own_;
  std::atomic<void (*)()> cache_release_{nullptr};
  Mutex making_;
  MemoryPool pool_ HORA_GUARDED_BY(making_);
  Mutex copying_;
  PinnedMemory bounce_ HORA_GUARDED_BY(copying_);
};

/// The host's time of a reference event. `called`: when it was recorded, which the stamp follows by
/// an idle stream's latency, usually 5 to 20 us. `former`: the host's time of the reference before
/// it, `distance` earlier on the device. Where former + distance is later, this call was slow or
/// the clocks drift: it is moved towards the call by as much as clocks may drift (100 ppm), so one
/// slow call does not shift the timeline.
constexpr std::chrono::nanoseconds host_time(std::chrono::nanoseconds called,
                                             std::chrono::nanoseconds former,
                                             std::chrono::nanoseconds distance) {
  constexpr int kDriftShare = 10'000;
  return std::max(called, former + distance - distance / kDriftShare);
}

/// While the trace is off, each call costs one load. While it is on, begin() and end() record an
/// event, which the timeline's writer reads once it is done. Times are those since a reference
/// event on a stream of its own, recorded anew every second (DeviceClock): early by one launch
/// latency, 5 to 20 us. Failures of CUDA here end the device's part of the timeline alone. Thread
/// rule: begin() and end() by one thread at a time.
class DeviceTrace final : public TraceSource {
 public:
  DeviceTrace(const Tracer& trace, const CudaFunctions& cuda, int device);
  ~DeviceTrace() override;
  DeviceTrace(const DeviceTrace&) = delete;
  DeviceTrace& operator=(const DeviceTrace&) = delete;

  /// Work that `stream` is given from now on is this phase; the one before it on that stream ends.
  void begin(cudaStream_t stream, const DevicePhase& phase) {
    if (trace_.on()) change(stream, phase);
  }
  void end(cudaStream_t stream) {
    if (trace_.on()) change(stream, std::nullopt);
  }

  bool collect() override;
  std::uint64_t drop() noexcept override;

 private:
  using EventPointer = std::shared_ptr<Event>;
  struct Reference {
    EventPointer event;
    TraceTime called;
    std::shared_ptr<Reference> former;  ///< until `host` is known
    std::optional<TraceTime> host;
  };
  /// Exists while the trace is on.
  struct Session {
    explicit Session(const CudaFunctions& cuda);
    EventPool events;
    CudaStream stream;  ///< of references
    std::shared_ptr<Reference> reference;
  };
  struct Open {
    DevicePhase phase;
    RowIndex subject;
    EventPointer begin;
    std::shared_ptr<Reference> reference;
  };
  struct PendingPhase {
    Open open;
    EventPointer end;
  };

  void change(cudaStream_t stream, const std::optional<DevicePhase>& phase);
  void record(cudaStream_t stream, const std::optional<DevicePhase>& phase) HORA_REQUIRES(mutex_);
  void refresh_reference() HORA_REQUIRES(mutex_);
  std::optional<PendingPhase> first();
  bool hand_in(const PendingPhase& pending);

  const Tracer trace_;
  const CudaFunctions& cuda_;
  const int device_;

  Mutex mutex_;  ///< held while events are recorded, not while they are read
  std::optional<Session> session_ HORA_GUARDED_BY(mutex_);
  std::map<cudaStream_t, Open> open_ HORA_GUARDED_BY(mutex_);
  std::deque<PendingPhase> pending_ HORA_GUARDED_BY(mutex_);  ///< taken away by the writer alone
  std::map<std::string_view, TraceTime> row_ends_;            ///< the writer's
  std::uint64_t lost_ HORA_GUARDED_BY(mutex_) = 0;
  bool failed_ HORA_GUARDED_BY(mutex_) = false;
};

}  // namespace hora::internal
