/// Flight records as values, for those who read them after a rank's end or watch it, and as files:
/// one JSON object a rank, "hora-record.<rank>.json".
#pragma once

#include <hora/error.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "core/flight/flight_recorder.h"

namespace hora::internal {

/// "starting", "initialised", "in shutdown", "shut down", "failed".
std::string_view name_of(RecordState state);

struct RecordedArrivals {
  RecordTime at{};
  std::uint64_t decisions = 0;  ///< on ids (negotiation/arrivals.h)
  std::uint64_t steps = 0;
  std::vector<RankArrivals> rows = {};
};

/// None where nothing was written, or a writer has died at it. Whatever the memory holds, counts
/// and phases are within their bounds, and nothing is negative. Thread rule: any thread.
std::optional<RecordedArrivals> read_arrivals(const RecordArrivals& memory);

/// 36 years; later times are damage.
inline constexpr RecordTime kLatestRecordTime{std::int64_t{1} << 60};

struct RecordedCollective {
  std::string name = {};  ///< the middle of a long one is left out
  std::uint32_t set = 0;
  std::uint64_t number = 0;  ///< among the decided ones of its set, from 1; 0: not decided
  OperationKind kind = OperationKind::allreduce;
  ReduceOp op = ReduceOp::sum;
  DataType type = DataType::float32;
  DeviceKind device = DeviceKind::cpu;
  RecordOutcome outcome = RecordOutcome::open;
  std::uint32_t peers = 0;  ///< ranks of the set
  std::uint64_t bytes = 0;
  RecordTime submitted{};
  RecordTime ready{};
  RecordTime started{};
  RecordTime done{};
  bool operator==(const RecordedCollective&) const = default;
};

/// The first error of a rank.
struct RecordedCause {
  std::string text = {};
  /// ErrorCode + 1, with kFailedElsewhere where it is of another rank; 0: an exception that is no
  /// hora::Error.
  std::uint32_t code = 0;
  bool is_told() const { return (code & kFailedElsewhere) != 0; }
  bool is(ErrorCode of) const { return code == static_cast<std::uint32_t>(of) + 1; }
  RecordTime time{};
  bool operator==(const RecordedCause&) const = default;
};

/// How a rank's process ended, as its parent has seen it.
struct RecordedEnd {
  int signal = 0;            ///< 0: it exited
  int status = 0;            ///< of exit()
  bool by_launcher = false;  ///< horarun sent the signal, because of something else
  RecordTime time{};
  bool operator==(const RecordedEnd&) const = default;
};

struct FlightRecord {
  std::string hora_version = {};
  int rank = -1;  ///< -1: hora::init had not got that far
  int size = 0;
  int node = 0;
  int local_rank = 0;
  std::string host = {};
  std::int64_t pid = 0;    ///< 0: hora::init was not called
  std::int64_t guard = 0;  ///< 0: none
  RecordState state = RecordState::starting;
  RecordTime begin{};                     ///< of hora::init
  std::chrono::nanoseconds begin_wall{};  ///< the same moment, since 1970
  RecordTime last_activity{};             ///< of hora on this rank
  RecordTime taken{};                     ///< when this was read
  int blocked = 0;                        ///< threads that wait for results
  std::optional<RecordedCause> cause = {};
  std::string phase = {};
  RecordTime phase_at{};
  std::uint64_t submitted = 0;   ///< collectives in all; those that follow are the last ones
  std::uint64_t unreadable = 0;  ///< of them, for their entries were half-written or damaged
  std::vector<RecordedCollective> collectives = {};  ///< in the order of submission

  // Known to the process that watches the rank, not from the memory.
  std::optional<RecordedEnd> ended = {};
  bool stopped = false;  ///< by a signal, when this was read
  bool operator==(const FlightRecord&) const = default;
};

/// Reads memory that another process may write to at the same time, or has damaged: texts are
/// printable, enumerators exist, numbers are within their bounds, entries are whole. An error names
/// what is no record. `now`: the time. `most`: of the last collectives; those who watch a rank that
/// lives need not read all. Thread rule: any thread.
tl::expected<FlightRecord, std::string> read_record(const RecordLayout& memory, RecordTime now,
                                                    std::size_t most = kRecordedCollectives);

/// No record is longer; longer files are refused unread.
inline constexpr std::size_t kLongestRecordFile = std::size_t{4} << 20;

/// One line of ASCII for the header's fields, one for each collective. Times are nanoseconds.
std::string to_json(const FlightRecord& record);

/// Reads the text of to_json(). The error names the first field that is missing, of a wrong type or
/// out of bounds, or the other version. Texts are made printable. Pure.
tl::expected<FlightRecord, std::string> record_from_json(std::string_view text);

/// "<folder>/hora-record.<rank>.json".
std::string record_file(const std::string& folder, int rank);

/// Makes the folder where it is missing (mode 0700). The error says what is in the way.
tl::expected<void, std::string> make_record_folder(const std::string& folder);

/// Writes record_file() anew (mode 0600, links are not followed) in make_record_folder(); returns
/// its path.
tl::expected<std::string, std::string> write_record(const FlightRecord& record,
                                                    const std::string& folder);

}  // namespace hora::internal
