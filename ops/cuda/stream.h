/// The device of a thread, its streams and events, and the order of work on them. Move-only owners.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "core/engine/interfaces.h"
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

}  // namespace hora::internal
