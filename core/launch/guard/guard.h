/// The parent of one rank: starts its program, passes on its output and its signals, and says how
/// it ended. mpirun starts it in the program's place.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/flight/flight_recorder.h"
#include "core/launch/control/channel.h"

namespace hora::launch {

/// The variable that names the file that rank 0 reads on standard input, where it runs on
/// horarun's host: Open MPI 5.0.11 does not pass on the end of its own input.
inline constexpr char kInputVariable[] = "HORARUN_INPUT";

/// Runs the program until its end; returns its exit status, or 128 and the signal that killed it.
/// The rank is killed where its guard, the agent, or what started the guard ends. `arguments`: the
/// Binding, and the program with its arguments in one word (encode_words()).
int run_guard(std::span<const std::string> arguments);

/// Name of the process that stands in for the guard (ps -o comm): MPI's launcher takes it for the
/// rank.
inline constexpr char kStandInName[] = "horarun-standin";

/// Whether the rank has ended as it should: exit status 0, and, if it has called hora::init, with
/// hora shut down.
bool ended_well(const RankEnded& ended);

/// The last lines of what a rank has printed, without those that are empty, and where there are
/// others without those that MPI prints where it ends the rank ("[host:4711] ...", "Abort(7) ...").
std::string last_lines(std::string_view text, std::size_t count);

/// The exit status that a rank has given MPICH's MPI_Abort, which returns with MPICH 4.0.2: from
/// "Abort(7) on node 2 (rank 2 in comm 0): application called MPI_Abort(...". None: no such call.
std::optional<int> status_of_abort(std::string_view output);

/// The longest --watch-interval, in seconds.
inline constexpr int kMostWatchInterval = 3600;

/// In place of a state: hora::init has not been called yet.
inline constexpr std::uint8_t kNotBegun = 255;

/// `now`: of the host's CLOCK_MONOTONIC.
RankSeen rank_seen(const internal::RecordLayout& memory, int rank, internal::RecordTime now);

/// Tells of the rank that counts arrivals, once there is something newer than `after`, whose time
/// replaces that. Fits into a message from a guard.
std::optional<ArrivalsSeen> arrivals_seen(const internal::RecordLayout& memory,
                                          internal::RecordTime& after);

}  // namespace hora::launch
