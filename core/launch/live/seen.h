/// What a guard tells of its rank that runs, out of the rank's flight record.
/// Thread rule: pure.
#pragma once

#include <optional>

#include "core/flight/record_reader.h"
#include "core/launch/control/messages.h"

namespace hora::launch {

/// Of --watch-interval, in seconds.
inline constexpr int kMostWatchInterval = 3600;

/// In place of a state: hora::init has not been called yet.
inline constexpr std::uint8_t kNotBegun = 255;

/// `now`: of the host's CLOCK_MONOTONIC.
RankSeen rank_seen(const internal::RecordLayout& memory, int rank, internal::RecordTime now);

/// Of the rank that counts arrivals, once there is something newer than `after`; its time replaces
/// that. Fits into a message from a guard.
std::optional<ArrivalsSeen> arrivals_seen(const internal::RecordLayout& memory,
                                          internal::RecordTime& after);

}  // namespace hora::launch
