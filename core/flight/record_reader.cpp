#include "core/flight/record_reader.h"

#include <fmt/format.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <concepts>
#include <cstdint>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>
#include <type_traits>
#include <utility>

#include "core/base/file.h"

namespace hora::internal {
std::string_view name_of(RecordState state) {
  constexpr std::array<std::string_view, 5> kNames{"starting", "initialised", "in shutdown",
                                                   "shut down", "failed"};
  return kNames[static_cast<std::size_t>(state)];
}

namespace {

constexpr auto kAcquire = std::memory_order_acquire;
/// A writer is at work at each of so many looks: it has died there.
constexpr int kLooks = 100;

/// Printable, whatever is there.
template <std::size_t Words>
std::string text_of(const std::array<std::atomic<std::uint64_t>, Words>& words) {
  std::array<std::uint64_t, Words + 1> bytes{};
  for (std::size_t i = 0; i < Words; ++i) bytes[i] = words[i].load(kAcquire);
  return printable(reinterpret_cast<const char*>(bytes.data()));
}

RecordTime time_of(const std::atomic<std::int64_t>& stored) {
  return std::clamp(RecordTime(stored.load(kAcquire)), RecordTime(0), kLatestRecordTime);
}

RecordedArrivals look_at(const RecordArrivals& memory) {
  RecordedArrivals arrivals{.at = time_of(memory.at),
                            .decisions = memory.decisions.load(kAcquire),
                            .steps = memory.steps.load(kAcquire)};
  const std::size_t count = std::min<std::size_t>(memory.count.load(kAcquire), kRecordedArrivals);
  for (const RecordArrivalsRow& row : std::span(memory.rows).first(count)) {
    arrivals.rows.push_back({.rank = std::max(0, row.rank.load(kAcquire)),
                             .last = row.last.load(kAcquire),
                             .median = time_of(row.median),
                             .p99 = time_of(row.p99),
                             .phase = static_cast<PhaseIndex>(std::min<std::uint32_t>(
                                 row.phase.load(kAcquire), kStepPhases - 1))});
  }
  return arrivals;
}

/// False where the number is no enumerator.
template <class E>
bool take(E& value, std::uint32_t number) {
  using Number = std::underlying_type_t<E>;
  if (number > static_cast<std::uint32_t>(last_of<E>)) return false;
  value = static_cast<E>(static_cast<Number>(number));
  return true;
}

/// None: another ticket's, half-written, or damaged.
std::optional<RecordedCollective> read_entry(const RecordEntry& entry, std::uint64_t ticket) {
  const auto mark = static_cast<std::uint32_t>(ticket + 1);
  if (entry.written.load(kAcquire) != mark) return std::nullopt;
  RecordedCollective read;
  // First what is stored last: where that is there, the rest is.
  const bool has_outcome = take(read.outcome, entry.outcome.load(kAcquire));
  read.done = time_of(entry.done);
  read.started = time_of(entry.started);
  read.ready = time_of(entry.ready);
  read.number = entry.number.load(kAcquire);
  read.submitted = time_of(entry.submitted);
  read.name = text_of(entry.name);
  read.set = entry.set.load(kAcquire);
  read.peers = entry.peers.load(kAcquire);
  read.bytes = std::min(entry.bytes.load(kAcquire), kMaxBytes);
  const std::uint32_t what = entry.what.load(kAcquire);
  const bool has_kind = take(read.kind, what & 0xFFU) && take(read.op, what >> 8U & 0xFFU) &&
                        take(read.type, what >> 16U & 0xFFU) && take(read.device, what >> 24U);
  if (entry.begun.load(kRelaxed) != mark || !has_outcome || !has_kind) return std::nullopt;
  return read;
}

void read_collectives(const RecordLayout& memory, std::size_t most, FlightRecord& record) {
  record.submitted = memory.header.next.load(kAcquire);
  const std::uint64_t count =
      std::min<std::uint64_t>({record.submitted, most, kRecordedCollectives});
  for (std::uint64_t ticket = record.submitted - count; ticket < record.submitted; ++ticket) {
    auto read = read_entry(memory.entries[ticket % kRecordedCollectives], ticket);
    if (read) {
      record.collectives.push_back(std::move(*read));
    } else {
      ++record.unreadable;
    }
  }
}

int within(std::int64_t number, int least, int most) {
  return static_cast<int>(std::clamp<std::int64_t>(number, least, most));
}

using Json = nlohmann::ordered_json;

/// The file's, as kRecordVersion is the memory's.
constexpr std::uint32_t kFileVersion = 2;

/// Escapes of what is not printable make a text longer, by up to six times.
constexpr std::size_t kLongestText = 6 * kRecordCauseBytes;

std::string_view name_of(RecordOutcome outcome) {
  constexpr std::array<std::string_view, 3> kNames{"open", "done", "failed"};
  return kNames[static_cast<std::size_t>(outcome)];
}

std::string json_line(const Json& json) {
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

/// The fields of an object, in a file: a constant is written, a variable is read. The first that is
/// wrong is kept as the problem.
class Fields {
 public:
  Fields(Json& object, std::string& problem) : object_(object), problem_(problem) {
    if (!object.is_object()) refuse("it is no object");
  }

  template <class T>
  void operator()(const char* name, const T& value, T = {}, T = {}) {
    if constexpr (std::is_enum_v<T>) {
      object_[name] = name_of(value);
    } else if constexpr (std::is_same_v<T, RecordTime>) {
      object_[name] = value.count();
    } else {
      object_[name] = value;
    }
  }
  template <std::integral T>
  void operator()(const char* name, T& value, T least = 0, T most = std::numeric_limits<T>::max()) {
    const Json* const field = find(name);
    if (!field) return;
    if (!field->is_number_integer()) return refuse("{} is no whole number", name);
    // The library keeps numbers that are not negative unsigned.
    const bool fits = field->is_number_unsigned() ? std::in_range<T>(field->get<std::uint64_t>())
                                                  : std::in_range<T>(field->get<std::int64_t>());
    if (fits) value = field->get<T>();
    if (!fits || value < least || value > most) refuse("{} is out of bounds", name);
  }
  void operator()(const char* name, RecordTime& value, RecordTime least = {},
                  RecordTime most = kLatestRecordTime) {
    std::int64_t nanoseconds = 0;
    (*this)(name, nanoseconds, least.count(), most.count());
    value = RecordTime(nanoseconds);
  }
  void operator()(const char* name, bool& value) {
    const Json* const field = find(name);
    if (!field) return;
    if (!field->is_boolean()) return refuse("{} is neither true nor false", name);
    value = field->get<bool>();
  }
  void operator()(const char* name, std::string& value) {
    const Json* const field = find(name);
    if (!field) return;
    if (!field->is_string()) return refuse("{} is no text", name);
    value = printable(field->get_ref<const std::string&>(), kLongestText);
  }
  /// The enumerator that has this text as its name.
  template <class E>
  requires std::is_enum_v<E>
  void operator()(const char* name, E& value) {
    std::string wanted;
    (*this)(name, wanted);
    using Number = std::underlying_type_t<E>;
    for (Number i = 0; i <= static_cast<Number>(last_of<E>); ++i) {
      if (name_of(static_cast<E>(i)) != wanted) continue;
      value = static_cast<E>(i);
      return;
    }
    refuse("{} is {}", name, in_quotes(wanted));
  }

 private:
  const Json* find(const char* name) {
    if (object_.is_object() && object_.contains(name)) return &object_[name];
    refuse("{} is missing", name);
    return nullptr;
  }
  template <class... Values>
  void refuse(fmt::format_string<const Values&...> text, const Values&... values) {
    if (problem_.empty()) problem_ = fmt::format(text, values...);
  }

  Json& object_;
  std::string& problem_;
};

// The fields of each object in a file, in their order.

template <class Collective>
void collective_fields(Fields fields, Collective& collective) {
  fields("name", collective.name);
  fields("set", collective.set);
  fields("number", collective.number);
  fields("kind", collective.kind);
  fields("op", collective.op);
  fields("type", collective.type);
  fields("device", collective.device);
  fields("outcome", collective.outcome);
  fields("peers", collective.peers);
  fields("bytes", collective.bytes, std::uint64_t{0}, kMaxBytes);
  fields("submitted", collective.submitted);
  fields("ready", collective.ready);
  fields("started", collective.started);
  fields("done", collective.done);
}

template <class Cause>
void cause_fields(Fields fields, Cause& cause) {
  fields("text", cause.text);
  fields("code", cause.code);
  fields("time", cause.time);
}

template <class End>
void end_fields(Fields fields, End& end) {
  fields("signal", end.signal, 0, 64);
  fields("status", end.status, 0, 255);
  fields("by_launcher", end.by_launcher);
  fields("time", end.time);
}

template <class Record>
void record_fields(Fields fields, Record& record) {
  fields("hora_version", record.hora_version);
  fields("rank", record.rank, -1);
  fields("size", record.size);
  fields("node", record.node);
  fields("local_rank", record.local_rank);
  fields("host", record.host);
  fields("pid", record.pid);
  fields("guard", record.guard);
  fields("state", record.state);
  fields("begin", record.begin);
  fields("begin_wall", record.begin_wall, RecordTime(0), RecordTime::max());
  fields("last_activity", record.last_activity);
  fields("taken", record.taken);
  fields("blocked", record.blocked);
  fields("phase", record.phase);
  fields("phase_at", record.phase_at);
  fields("stopped", record.stopped);
  fields("submitted", record.submitted);
  fields("unreadable", record.unreadable);
}

}  // namespace

std::optional<RecordedArrivals> read_arrivals(const RecordArrivals& memory) {
  for (int look = 0; look < kLooks; ++look) {
    const std::uint32_t sequence = memory.sequence.load(kAcquire);
    if (sequence == 0) return std::nullopt;
    if (sequence % 2 == 1) continue;
    RecordedArrivals arrivals = look_at(memory);
    if (memory.sequence.load(kRelaxed) == sequence) return arrivals;
  }
  return std::nullopt;
}

tl::expected<FlightRecord, std::string> read_record(const RecordLayout& memory, RecordTime now,
                                                    std::size_t most) {
  constexpr int kMost = std::numeric_limits<int>::max();
  const RecordHeader& header = memory.header;
  if (header.magic.load(kAcquire) != kRecordMagic) {
    return tl::unexpected(std::string("this memory holds no flight record"));
  }
  if (const std::uint32_t version = header.version.load(); version != kRecordVersion) {
    return tl::unexpected(
        fmt::format("this flight record has layout {}, not {}", version, kRecordVersion));
  }
  FlightRecord record;
  take(record.state, header.state.load(kAcquire));
  record.rank = within(header.rank.load(kAcquire), -1, kMost);
  record.size = within(header.size.load(kRelaxed), 0, kMost);
  record.node = within(header.node.load(kRelaxed), 0, kMost);
  record.local_rank = within(header.local_rank.load(kRelaxed), 0, kMost);
  record.hora_version = text_of(header.hora_version);
  record.host = text_of(header.host);
  record.pid = std::max<std::int64_t>(0, header.pid.load(kRelaxed));
  record.guard = std::max<std::int64_t>(0, header.guard.load(kRelaxed));
  record.begin = time_of(header.begin);
  record.begin_wall = RecordTime(std::max<std::int64_t>(0, header.begin_wall.load(kRelaxed)));
  record.taken = now;
  record.blocked = within(header.blocked.load(kRelaxed), 0, kMost);
  if (header.cause_state.load(kAcquire) == 2) {
    record.cause = RecordedCause{.text = text_of(header.cause),
                                 .code = header.cause_code.load(kRelaxed),
                                 .time = time_of(header.cause_at)};
  }
  record.phase = text_of(header.phase);
  record.phase_at = time_of(header.phase_at);
  record.last_activity = std::max({record.begin, time_of(header.submitted_at),
                                   time_of(header.progressed_at), time_of(header.phase_at)});
  read_collectives(memory, most, record);
  return record;
}

std::string to_json(const FlightRecord& record) {
  std::string none;
  const auto written = [&](Json& object) { return Fields(object = Json::object(), none); };
  Json header;
  written(header)("hora_record", kFileVersion);
  record_fields(Fields(header, none), record);
  if (record.cause) cause_fields(written(header["cause"]), *record.cause);
  if (record.ended) end_fields(written(header["ended"]), *record.ended);
  std::string text = json_line(header);
  text.back() = ',';
  text += "\n\"collectives\":[";
  for (std::size_t i = 0; i < record.collectives.size(); ++i) {
    text += i == 0 ? "\n" : ",\n";
    Json collective;
    collective_fields(written(collective), record.collectives[i]);
    text += json_line(collective);
  }
  return text + "]}\n";
}

tl::expected<FlightRecord, std::string> record_from_json(std::string_view text) {
  if (text.size() > kLongestRecordFile) {
    return tl::unexpected(fmt::format("it is longer than {} bytes", kLongestRecordFile));
  }
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return tl::unexpected(std::string("it is no JSON, or cut off"));
  std::string problem;
  FlightRecord record;
  Fields fields(json, problem);
  std::uint32_t version = 0;
  fields("hora_record", version);
  if (problem.empty() && version != kFileVersion) {
    problem = fmt::format("hora_record is {}, not {}: another version of hora has written it",
                          version, kFileVersion);
  }
  if (!problem.empty()) return tl::unexpected(problem);
  record_fields(fields, record);
  if (json.contains("cause")) cause_fields({json["cause"], problem}, record.cause.emplace());
  if (json.contains("ended")) end_fields({json["ended"], problem}, record.ended.emplace());
  Json& list = json["collectives"];
  if (problem.empty() && (!list.is_array() || list.size() > kRecordedCollectives)) {
    problem = fmt::format("collectives is no list of at most {}", kRecordedCollectives);
  }
  for (std::size_t i = 0; problem.empty() && i < list.size(); ++i) {
    collective_fields({list[i], problem}, record.collectives.emplace_back());
  }
  if (!problem.empty()) return tl::unexpected(problem);
  return record;
}

std::string record_file(const std::string& folder, int rank) {
  return fmt::format("{}/hora-record.{}.json", folder, rank);
}

tl::expected<void, std::string> make_record_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), S_IRWXU) == 0) return {};
  const int error = errno;
  if (error != EEXIST) {
    return tl::unexpected("the folder " + in_quotes(folder) +
                          " cannot be made: " + std::generic_category().message(error));
  }
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) {
    return tl::unexpected(in_quotes(folder) + " is no folder");
  }
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return tl::unexpected("the folder " + in_quotes(folder) +
                          " cannot be written to: " + std::generic_category().message(errno));
  }
  return {};
}

tl::expected<std::string, std::string> write_record(const FlightRecord& record,
                                                    const std::string& folder) {
  if (const auto made = make_record_folder(folder); !made) return tl::unexpected(made.error());
  const std::string path = record_file(folder, record.rank);
  try {
    const NewFile made(path);
    std::ofstream file(made.descriptor_path());
    file << to_json(record) << std::flush;
    if (!file) {
      return tl::unexpected(fmt::format("the file {} cannot be written: {}", in_quotes(path),
                                        std::generic_category().message(errno)));
    }
  } catch (const Error& error) {
    return tl::unexpected(std::string(error.what()));
  }
  return path;
}

}  // namespace hora::internal
