#include "core/flight/record_reader.h"

#include <fmt/format.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/base/file.h"

namespace hora::internal {
namespace {

constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;
/// A writer is at work at each of so many looks: it has died there.
constexpr int kLooks = 100;

std::chrono::nanoseconds length_of(const std::atomic<std::int64_t>& stored) {
  return std::chrono::nanoseconds(std::max<std::int64_t>(0, stored.load(kAcquire)));
}

RecordedArrivals look_at(const RecordArrivals& memory) {
  RecordedArrivals arrivals;
  arrivals.at = length_of(memory.at);
  arrivals.decisions = memory.decisions.load(kAcquire);
  arrivals.steps = memory.steps.load(kAcquire);
  for (const auto& phase : memory.phases) arrivals.phases.push_back(text_of(phase));
  const std::size_t count = std::min<std::size_t>(memory.count.load(kAcquire), kRecordedArrivals);
  for (std::size_t i = 0; i < count; ++i) {
    const RecordArrivalsRow& row = memory.rows[i];
    arrivals.rows.push_back({.rank = std::max(0, row.rank.load(kAcquire)),
                             .last = row.last.load(kAcquire),
                             .median = length_of(row.median),
                             .p99 = length_of(row.p99),
                             .phase = static_cast<PhaseIndex>(std::min<std::uint32_t>(
                                 row.phase.load(kAcquire), kRecordedPhases - 1))});
  }
  return arrivals;
}

RecordTime time_of(const std::atomic<std::int64_t>& stored) {
  return std::clamp(RecordTime(stored.load(kAcquire)), RecordTime(0), kLatestRecordTime);
}

/// False where the number is no enumerator.
template <class E>
bool take(E& value, std::uint32_t number) {
  using Number = std::underlying_type_t<E>;
  if (number > static_cast<std::uint32_t>(last_of<E>)) return false;
  value = static_cast<E>(static_cast<Number>(number));
  return true;
}

bool take_what(RecordedCollective& collective, std::uint32_t what) {
  return take(collective.kind, what & 0xFFU) && take(collective.op, what >> 8U & 0xFFU) &&
         take(collective.type, what >> 16U & 0xFFU) && take(collective.device, what >> 24U);
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
  const bool has_kind = take_what(read, entry.what.load(kAcquire));
  if (entry.begun.load(kRelaxed) != mark || !has_outcome || !has_kind) return std::nullopt;
  return read;
}

void read_collectives(const RecordLayout& memory, FlightRecord& record) {
  record.submitted = memory.header.next.load(kAcquire);
  const std::uint64_t count = std::min<std::uint64_t>(record.submitted, kRecordedCollectives);
  for (std::uint64_t ticket = record.submitted - count; ticket < record.submitted; ++ticket) {
    auto read = read_entry(memory.entries[ticket % kRecordedCollectives], ticket);
    if (read) {
      record.collectives.push_back(std::move(*read));
    } else {
      ++record.unreadable;
    }
  }
}

void read_phase(const RecordHeader& header, FlightRecord& record) {
  for (int look = 0; look < kLooks; ++look) {
    const std::uint32_t sequence = header.phase_sequence.load(kAcquire);
    std::string text = text_of(header.phase);
    const RecordTime time = time_of(header.phase_at);
    if (sequence % 2 == 1 || header.phase_sequence.load(kRelaxed) != sequence) continue;
    record.phase = std::move(text);
    record.phase_at = time;
    return;
  }
}

void read_cause(const RecordHeader& header, FlightRecord& record) {
  if (header.cause_state.load(kAcquire) != 2) return;
  record.cause = RecordedCause{.text = text_of(header.cause),
                               .code = header.cause_code.load(kRelaxed),
                               .time = time_of(header.cause_at)};
}

int within(std::int64_t number, int least, int most) {
  return static_cast<int>(std::clamp<std::int64_t>(number, least, most));
}

using Json = nlohmann::ordered_json;

/// Escapes of what is not printable make a text longer, by up to six times.
constexpr std::size_t kLongestText = 6 * kRecordCauseBytes;

std::string_view name_of(RecordOutcome outcome) {
  constexpr std::array<std::string_view, 3> kNames{"open", "done", "failed"};
  return kNames[static_cast<std::size_t>(outcome)];
}

std::string line(const Json& json) {
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

/// Adds fields to an object; its functions are those of FieldReader.
class FieldWriter {
 public:
  explicit FieldWriter(Json& object) : object_(object) {}

  template <class T>
  void number(const char* name, T value, T, T) {
    object_[name] = value;
  }
  template <class T>
  void count(const char* name, T value) {
    object_[name] = value;
  }
  void time(const char* name, RecordTime value) { object_[name] = value.count(); }
  void wall_time(const char* name, RecordTime value) { object_[name] = value.count(); }
  void flag(const char* name, bool value) { object_[name] = value; }
  void text(const char* name, const std::string& value) { object_[name] = value; }
  template <class E>
  void choice(const char* name, E value) {
    object_[name] = name_of(value);
  }

 private:
  Json& object_;
};

/// Takes the fields of an object; the first that is wrong is kept as the problem.
class FieldReader {
 public:
  FieldReader(const Json& object, std::string& problem) : object_(object), problem_(problem) {
    if (!object.is_object()) refuse("it is no object");
  }

  template <class T>
  void number(const char* name, T& value, T least, T most) {
    const Json* const field = find(name);
    if (!field) return;
    if (!field->is_number_integer()) return refuse(std::string(name) + " is no whole number");
    // The library keeps numbers that are not negative unsigned.
    const auto take = [&](auto number) {
      const bool fits = std::in_range<T>(number);
      if (fits) value = static_cast<T>(number);
      return fits;
    };
    const bool taken = field->is_number_unsigned() ? take(field->get<std::uint64_t>())
                                                   : take(field->get<std::int64_t>());
    if (!taken || value < least || value > most) out_of_bounds(name);
  }
  template <class T>
  void count(const char* name, T& value) {
    number(name, value, T{0}, std::numeric_limits<T>::max());
  }
  void time(const char* name, RecordTime& value) {
    std::int64_t nanoseconds = 0;
    number(name, nanoseconds, std::int64_t{0}, kLatestRecordTime.count());
    value = RecordTime(nanoseconds);
  }
  void wall_time(const char* name, std::chrono::nanoseconds& value) {
    std::int64_t nanoseconds = 0;
    count(name, nanoseconds);
    value = std::chrono::nanoseconds(nanoseconds);
  }
  void flag(const char* name, bool& value) {
    const Json* const field = find(name);
    if (!field) return;
    if (!field->is_boolean()) return refuse(std::string(name) + " is neither true nor false");
    value = field->get<bool>();
  }
  void text(const char* name, std::string& value) {
    const Json* const field = find(name);
    if (!field) return;
    if (!field->is_string()) return refuse(std::string(name) + " is no text");
    value = printable(field->get_ref<const std::string&>(), kLongestText);
  }
  /// The enumerator that has this text as its name.
  template <class E>
  void choice(const char* name, E& value) {
    std::string wanted;
    text(name, wanted);
    using Number = std::underlying_type_t<E>;
    for (Number i = 0; i <= static_cast<Number>(last_of<E>); ++i) {
      if (name_of(static_cast<E>(i)) != wanted) continue;
      value = static_cast<E>(i);
      return;
    }
    refuse(std::string(name) + " is " + in_quotes(wanted));
  }
  const Json* optional(const char* name) const {
    if (!object_.is_object()) return nullptr;
    const auto field = object_.find(name);
    return field == object_.end() ? nullptr : &*field;
  }

 private:
  const Json* find(const char* name) {
    const Json* const field = optional(name);
    if (!field) refuse(std::string(name) + " is missing");
    return field;
  }
  void out_of_bounds(const char* name) { refuse(std::string(name) + " is out of bounds"); }
  void refuse(const std::string& problem) {
    if (problem_.empty()) problem_ = problem;
  }

  const Json& object_;
  std::string& problem_;
};

// The fields of each object in a file, in their order. `io`: a FieldWriter or a FieldReader.

template <class Io, class Collective>
void collective_fields(Io&& io, Collective& collective) {
  io.text("name", collective.name);
  io.count("set", collective.set);
  io.count("number", collective.number);
  io.choice("kind", collective.kind);
  io.choice("op", collective.op);
  io.choice("type", collective.type);
  io.choice("device", collective.device);
  io.choice("outcome", collective.outcome);
  io.count("peers", collective.peers);
  io.number("bytes", collective.bytes, std::uint64_t{0}, kMaxBytes);
  io.time("submitted", collective.submitted);
  io.time("ready", collective.ready);
  io.time("started", collective.started);
  io.time("done", collective.done);
}

template <class Io, class Cause>
void cause_fields(Io&& io, Cause& cause) {
  io.text("text", cause.text);
  io.count("code", cause.code);
  io.time("time", cause.time);
}

template <class Io, class End>
void end_fields(Io&& io, End& end) {
  io.number("signal", end.signal, 0, 64);
  io.number("status", end.status, 0, 255);
  io.flag("by_launcher", end.by_launcher);
  io.time("time", end.time);
}

template <class Io, class Record>
void record_fields(Io&& io, Record& record) {
  io.text("hora_version", record.hora_version);
  io.number("rank", record.rank, -1, std::numeric_limits<int>::max());
  io.count("size", record.size);
  io.count("node", record.node);
  io.count("local_rank", record.local_rank);
  io.text("host", record.host);
  io.count("pid", record.pid);
  io.count("guard", record.guard);
  io.choice("state", record.state);
  io.time("begin", record.begin);
  io.wall_time("begin_wall", record.begin_wall);
  io.time("last_activity", record.last_activity);
  io.time("taken", record.taken);
  io.count("blocked", record.blocked);
  io.text("phase", record.phase);
  io.time("phase_at", record.phase_at);
  io.flag("stopped", record.stopped);
  io.count("submitted", record.submitted);
  io.count("unreadable", record.unreadable);
}

void take_collectives(const Json& json, FlightRecord& record, std::string& problem) {
  const auto list = json.find("collectives");
  if (list == json.end() || !list->is_array() || list->size() > kRecordedCollectives) {
    if (problem.empty()) {
      problem = "collectives is no list of at most " + std::to_string(kRecordedCollectives);
    }
    return;
  }
  for (const Json& one : *list) {
    collective_fields(FieldReader(one, problem), record.collectives.emplace_back());
    if (!problem.empty()) return;
  }
}

/// Writes all of it; the error says why not.
tl::expected<void, std::string> write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(descriptor, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return tl::unexpected(std::generic_category().message(errno));
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

}  // namespace

void write_arrivals(RecordArrivals& memory, const ArrivalsToRecord& arrivals) noexcept {
  const std::uint32_t sequence = memory.sequence.load(kRelaxed);
  // Acquired, so that no store below comes before it; also over what a killed process has left.
  const std::uint32_t odd = sequence | 1U;
  memory.sequence.exchange(odd, std::memory_order_acq_rel);
  memory.at.store(arrivals.at.count(), kRelease);
  memory.decisions.store(arrivals.decisions, kRelease);
  memory.steps.store(arrivals.steps, kRelease);
  for (std::size_t i = 0; i < std::min(arrivals.phases.size(), memory.phases.size()); ++i) {
    store_text(memory.phases[i], arrivals.phases[i]);
  }
  const std::size_t count = std::min(arrivals.rows.size(), memory.rows.size());
  for (std::size_t i = 0; i < count; ++i) {
    RecordArrivalsRow& row = memory.rows[i];
    const RecordedArrivalsRow& from = arrivals.rows[i];
    row.rank.store(from.rank, kRelease);
    row.phase.store(from.phase, kRelease);
    row.last.store(from.last, kRelease);
    row.median.store(from.median.count(), kRelease);
    row.p99.store(from.p99.count(), kRelease);
  }
  memory.count.store(static_cast<std::uint32_t>(count), kRelease);
  memory.sequence.store(odd + 1, kRelease);
}

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

RecordTime record_now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

RecordState state_of(const RecordLayout& memory) noexcept {
  RecordState state = RecordState::starting;
  take(state, memory.header.state.load(kAcquire));
  return state;
}

RecordTime last_activity_of(const RecordLayout& memory) noexcept {
  const RecordHeader& header = memory.header;
  return std::max({time_of(header.begin), time_of(header.submitted_at),
                   time_of(header.progressed_at), time_of(header.phase_at)});
}

RecordGlance glance_at(const RecordLayout& memory) {
  const RecordHeader& header = memory.header;
  RecordGlance glance;
  glance.has_begun = header.pid.load(kAcquire) > 0;
  glance.state = state_of(memory);
  glance.submitted = header.next.load(kAcquire);
  if (glance.submitted > 0) {
    const std::uint64_t ticket = glance.submitted - 1;
    auto last = read_entry(memory.entries[ticket % kRecordedCollectives], ticket);
    if (last) glance.last_collective = std::move(last->name);
  }
  glance.waits = header.blocked.load(kRelaxed) > 0;
  glance.last_activity = last_activity_of(memory);
  FlightRecord phase;
  read_phase(header, phase);
  glance.phase = std::move(phase.phase);
  return glance;
}

tl::expected<FlightRecord, std::string> read_record(const RecordLayout& memory, RecordTime now) {
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
  record.state = state_of(memory);
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
  record.last_activity = last_activity_of(memory);
  record.taken = now;
  record.blocked = within(header.blocked.load(kRelaxed), 0, kMost);
  read_cause(header, record);
  read_phase(header, record);
  read_collectives(memory, record);
  return record;
}

std::string to_json(const FlightRecord& record) {
  Json header = {{"hora_record", kRecordVersion}};
  record_fields(FieldWriter(header), record);
  if (record.cause) cause_fields(FieldWriter(header["cause"]), *record.cause);
  if (record.ended) end_fields(FieldWriter(header["ended"]), *record.ended);
  std::string text = line(header);
  text.back() = ',';
  text += "\n\"collectives\":[";
  for (std::size_t i = 0; i < record.collectives.size(); ++i) {
    text += i == 0 ? "\n" : ",\n";
    Json collective;
    collective_fields(FieldWriter(collective), record.collectives[i]);
    text += line(collective);
  }
  return text + "]}\n";
}

tl::expected<FlightRecord, std::string> record_from_json(std::string_view text) {
  if (text.size() > kLongestRecordFile) {
    return tl::unexpected("it is longer than " + std::to_string(kLongestRecordFile) + " bytes");
  }
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return tl::unexpected(std::string("it is no JSON, or cut off"));
  std::string problem;
  FlightRecord record;
  FieldReader fields(json, problem);
  std::uint32_t version = 0;
  fields.count("hora_record", version);
  if (problem.empty() && version != kRecordVersion) {
    problem = fmt::format("hora_record is {}, not {}: another version of hora has written it",
                          version, kRecordVersion);
  }
  if (!problem.empty()) return tl::unexpected(problem);
  record_fields(fields, record);
  if (const Json* const cause = fields.optional("cause")) {
    cause_fields(FieldReader(*cause, problem), record.cause.emplace());
  }
  if (const Json* const end = fields.optional("ended")) {
    end_fields(FieldReader(*end, problem), record.ended.emplace());
  }
  take_collectives(json, record, problem);
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
    const NewFile file(path);
    const auto written = write_all(file.descriptor(), to_json(record));
    if (!written) {
      return tl::unexpected(
          fmt::format("the file {} cannot be written: {}", in_quotes(path), written.error()));
    }
  } catch (const Error& error) {
    return tl::unexpected(std::string(error.what()));
  }
  return path;
}

}  // namespace hora::internal
