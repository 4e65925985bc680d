/// When a device really worked, for the timeline: events with time stamps around what its streams
/// are given.
///
/// From a device's clock to the host's. Pure.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>

#include "core/base/sync.h"
#include "core/trace/trace.h"
#include "ops/cuda/stream.h"

namespace hora::internal {

/// The host's time of a reference event. `called`: when it was recorded, which the device's stamp
/// follows by the latency of an idle stream, usually 5 to 20 us, but by more where the device is
/// crowded. `former`: the host's time of the reference before it; `distance`: from that one to this
/// one, on the device.
///
/// The stamp is never earlier than the call. Where former + distance is later, either this call was
/// slow, and the estimate right, or the clocks drift: it is moved towards the call by as much as
/// clocks may drift (100 ppm), so one slow call does not shift the timeline.
constexpr std::chrono::nanoseconds host_time(std::chrono::nanoseconds called,
                                             std::chrono::nanoseconds former,
                                             std::chrono::nanoseconds distance) {
  constexpr int kDriftShare = 10'000;
  return std::max(called, former + distance - distance / kDriftShare);
}

/// While the trace is off, each call costs one load and no event exists. While it is on, begin()
/// and end() record an event; the timeline's writer reads them once they are done, and never waits.
/// The device's times are those since a reference event, on a stream of its own, which is recorded
/// before the first phase and anew every second (DeviceClock): on an idle or moderately busy
/// device they are early by one launch latency, 5 to 20 us. Failures of CUDA here end the device's
/// part of the timeline, nothing else. Thread rule: begin() and end() by one thread at a time.
class DeviceTrace final : public TraceSource {
 public:
  DeviceTrace(const Tracer& trace, const CudaFunctions& cuda, int device);
  ~DeviceTrace() override;
  DeviceTrace(const DeviceTrace&) = delete;
  DeviceTrace& operator=(const DeviceTrace&) = delete;

  /// What `stream` is given from now on is this phase; the one before it on that stream ends.
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
  /// What exists while the trace is on.
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
  void fail() noexcept;
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
