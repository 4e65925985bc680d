/// Move-only owner of a CUDA event, and a pool of them.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>

#include "ops/cuda/owned.h"

namespace hora {

/// Whether an event records when the stream reached it. Without, it is cheaper.
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

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace hora
