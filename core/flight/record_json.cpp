#include <hora/error.h>
#include <hora/printable.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "core/base/file.h"
#include "core/flight/record_reader.h"

namespace hora::internal {
namespace {

using Json = nlohmann::ordered_json;

/// Escapes of what is not printable make a text longer, by up to six times.
constexpr std::size_t kLongestText = 6 * kRecordCauseBytes;

std::string_view name_of(RecordOutcome outcome) {
  switch (outcome) {
    case RecordOutcome::open:
      return "open";
    case RecordOutcome::done:
      return "done";
    case RecordOutcome::failed:
      return "failed";
  }
  return {};
}

std::string line(const Json& json) {
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

Json json_of(const RecordedCollective& collective) {
  return {{"name", collective.name},
          {"set", collective.set},
          {"number", collective.number},
          {"kind", name_of(collective.kind)},
          {"op", name_of(collective.op)},
          {"type", name_of(collective.type)},
          {"device", name_of(collective.device)},
          {"outcome", name_of(collective.outcome)},
          {"peers", collective.peers},
          {"bytes", collective.bytes},
          {"submitted", collective.submitted.count()},
          {"ready", collective.ready.count()},
          {"started", collective.started.count()},
          {"done", collective.done.count()}};
}

Json json_of(const RecordedCause& cause) {
  return {{"text", cause.text}, {"code", cause.code}, {"time", cause.time.count()}};
}

Json json_of(const RecordedEnd& end) {
  return {{"signal", end.signal},
          {"status", end.status},
          {"by_launcher", end.by_launcher},
          {"time", end.time.count()}};
}

Json header_of(const FlightRecord& record) {
  Json header = {{"hora_record", kRecordVersion},
                 {"hora_version", record.hora_version},
                 {"rank", record.rank},
                 {"size", record.size},
                 {"node", record.node},
                 {"local_rank", record.local_rank},
                 {"host", record.host},
                 {"pid", record.pid},
                 {"guard", record.guard},
                 {"state", name_of(record.state)},
                 {"begin", record.begin.count()},
                 {"begin_wall", record.begin_wall.count()},
                 {"last_activity", record.last_activity.count()},
                 {"taken", record.taken.count()},
                 {"blocked", record.blocked},
                 {"phase", record.phase},
                 {"phase_at", record.phase_at.count()},
                 {"stopped", record.stopped},
                 {"submitted", record.submitted},
                 {"unreadable", record.unreadable}};
  if (record.cause) header["cause"] = json_of(*record.cause);
  if (record.ended) header["ended"] = json_of(*record.ended);
  return header;
}

/// Takes the fields of an object; the first that is wrong is kept as the problem.
class Fields {
 public:
  Fields(const Json& object, std::string& problem) : object_(object), problem_(problem) {
    if (!object.is_object()) refuse("it is no object");
  }

  template <class T>
  void number(const char* name, T& value, T least, T most) {
    const Json* const field = find(name);
    if (!field) return;
    if (!field->is_number_integer()) return refuse(std::string(name) + " is no whole number");
    // The library keeps numbers that are not negative unsigned.
    const bool is_negative = !field->is_number_unsigned();
    if (is_negative) {
      const auto number = field->get<std::int64_t>();
      if (!std::in_range<T>(number)) return out_of_bounds(name);
      value = static_cast<T>(number);
    } else {
      const auto number = field->get<std::uint64_t>();
      if (!std::in_range<T>(number)) return out_of_bounds(name);
      value = static_cast<T>(number);
    }
    if (value < least || value > most) out_of_bounds(name);
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

RecordedCollective collective_of(const Json& json, std::string& problem) {
  RecordedCollective collective;
  Fields fields(json, problem);
  fields.text("name", collective.name);
  fields.count("set", collective.set);
  fields.count("number", collective.number);
  fields.choice("kind", collective.kind);
  fields.choice("op", collective.op);
  fields.choice("type", collective.type);
  fields.choice("device", collective.device);
  fields.choice("outcome", collective.outcome);
  fields.count("peers", collective.peers);
  fields.number("bytes", collective.bytes, std::uint64_t{0}, kMaxBytes);
  fields.time("submitted", collective.submitted);
  fields.time("ready", collective.ready);
  fields.time("started", collective.started);
  fields.time("done", collective.done);
  return collective;
}

RecordedCause cause_of(const Json& json, std::string& problem) {
  RecordedCause cause;
  Fields fields(json, problem);
  fields.text("text", cause.text);
  fields.count("code", cause.code);
  fields.time("time", cause.time);
  return cause;
}

RecordedEnd end_of(const Json& json, std::string& problem) {
  constexpr int kMostSignal = 64;
  constexpr int kMostStatus = 255;
  RecordedEnd end;
  Fields fields(json, problem);
  fields.number("signal", end.signal, 0, kMostSignal);
  fields.number("status", end.status, 0, kMostStatus);
  fields.flag("by_launcher", end.by_launcher);
  fields.time("time", end.time);
  return end;
}

void take_header(Fields& fields, FlightRecord& record) {
  constexpr int kMost = std::numeric_limits<int>::max();
  fields.text("hora_version", record.hora_version);
  fields.number("rank", record.rank, -1, kMost);
  fields.count("size", record.size);
  fields.count("node", record.node);
  fields.count("local_rank", record.local_rank);
  fields.text("host", record.host);
  fields.count("pid", record.pid);
  fields.count("guard", record.guard);
  fields.choice("state", record.state);
  fields.time("begin", record.begin);
  fields.wall_time("begin_wall", record.begin_wall);
  fields.time("last_activity", record.last_activity);
  fields.time("taken", record.taken);
  fields.count("blocked", record.blocked);
  fields.text("phase", record.phase);
  fields.time("phase_at", record.phase_at);
  fields.flag("stopped", record.stopped);
  fields.count("submitted", record.submitted);
  fields.count("unreadable", record.unreadable);
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
    record.collectives.push_back(collective_of(one, problem));
    if (!problem.empty()) return;
  }
}

/// What is written, or why it is not.
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

std::string to_json(const FlightRecord& record) {
  std::string text = line(header_of(record));
  text.back() = ',';
  text += "\n\"collectives\":[";
  for (std::size_t i = 0; i < record.collectives.size(); ++i) {
    text += i == 0 ? "\n" : ",\n";
    text += line(json_of(record.collectives[i]));
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
  Fields fields(json, problem);
  std::uint32_t version = 0;
  fields.count("hora_record", version);
  if (problem.empty() && version != kRecordVersion) {
    problem = "hora_record is " + std::to_string(version) + ", not " +
              std::to_string(kRecordVersion) + ": another version of hora has written it";
  }
  if (!problem.empty()) return tl::unexpected(problem);
  take_header(fields, record);
  if (const Json* const cause = fields.optional("cause")) record.cause = cause_of(*cause, problem);
  if (const Json* const end = fields.optional("ended")) record.ended = end_of(*end, problem);
  take_collectives(json, record, problem);
  if (!problem.empty()) return tl::unexpected(problem);
  return record;
}

std::string record_file(const std::string& folder, int rank) {
  return folder + "/hora-record." + std::to_string(rank) + ".json";
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
      return tl::unexpected("the file " + in_quotes(path) +
                            " cannot be written: " + written.error());
    }
  } catch (const Error& error) {
    return tl::unexpected(std::string(error.what()));
  }
  return path;
}

}  // namespace hora::internal
