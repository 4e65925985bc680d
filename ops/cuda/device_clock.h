/// From a device's clock to the host's. Pure.
#pragma once

#include <algorithm>
#include <chrono>

namespace hora {

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

}  // namespace hora
