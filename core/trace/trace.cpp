#include "core/trace/trace.h"

#include <fmt/format.h>
#include <hora/error.h>
#include <hora/printable.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/base/log.h"
#include "core/base/process.h"

namespace hora::internal {
namespace {

/// Empty where the chunk waits or is done.
std::string_view name_of(ChunkStage stage) {
  constexpr std::array<std::string_view, 5> kNames{"local_in", "cross", "local_out", "", ""};
  return kNames[static_cast<std::size_t>(stage)];
}

/// `name` as it is shown: with its set beside it, unless that is the world.
std::string beside_set(std::string_view name, ProcessSet set) {
  std::string text(name);
  if (set != kWorld) text += " (set " + to_string(set) + ")";
  return text;
}

using Json = nlohmann::ordered_json;

/// errno is 0 before the first call that may fail.
std::string reason() {
  return errno == 0 ? std::string("unknown error") : std::generic_category().message(errno);
}

/// Interval at which stop() polls a device.
constexpr auto kSourcePause = std::chrono::milliseconds(1);

}  // namespace

Recording::Recording(std::size_t events, std::size_t rows) : capacity_(events), most_rows_(rows) {
  events_.reserve(capacity_);
}

RowIndex Recording::row(RowGroup group, std::string_view name) {
  std::string key(1, static_cast<char>(group));
  key += name;
  if (const auto found = rows_.find(key); found != rows_.end()) return found->second;
  if (rows_.size() == most_rows_) return kNoRow;
  const auto index = static_cast<RowIndex>(rows_.size());
  rows_.emplace(std::move(key), index);
  new_rows_.push_back({group, printable(name, kLongestQuotation)});
  return index;
}

RowIndex Recording::row(const TensorKey& tensor) {
  return row(RowGroup::tensors, beside_set(tensor.name, tensor.set));
}

void Recording::push(RowIndex row, std::string_view name, TraceTime begin, TraceTime end,
                     TraceEvent event) {
  if (row == kNoRow || events_.size() == capacity_) return drop(1);
  event.row = row;
  event.name = name;
  event.begin = begin;
  event.duration = end - begin;
  events_.push_back(event);
}

void Recording::take(EventBatch& batch) {
  batch.events.clear();
  batch.events.reserve(capacity_);
  batch.rows.clear();
  std::swap(batch.events, events_);
  std::swap(batch.rows, new_rows_);
  batch.dropped = dropped_;
}

void Recording::marked(const TensorKey& tensor, std::string_view mark, TraceTime time) {
  push(row(tensor), mark, time, time, {.is_mark = true});
}

void Recording::negotiated(const TensorKey& tensor, TraceTime submitted, TraceTime decided,
                           int last_rank, TraceTime late) {
  push(row(tensor), "negotiate", submitted, decided, {.last_rank = last_rank, .late = late});
}

void Recording::planned(UnitKey key, const UnitFacts& facts,
                        const std::vector<TensorFacts>& tensors) {
  OpenUnit& unit = units_[key];
  unit.facts = facts;
  for (const TensorFacts& tensor : tensors) {
    unit.tensors.push_back({row({tensor.name, key.set}), tensor.bytes, tensor.decided});
  }
}

void Recording::started(UnitKey key, TraceTime time) {
  const auto found = units_.find(key);
  if (found == units_.end() || found->second.started) return;
  found->second.started = time;
  for (const OpenTensor& tensor : found->second.tensors) {
    push(tensor.row, "queue", tensor.decided, time, {.unit = key});
  }
}

void Recording::completed(UnitKey key, TraceTime time) {
  started(key, time);  // where it had nothing to do on this rank
  const auto found = units_.find(key);
  if (found == units_.end()) return;
  const OpenUnit& unit = found->second;
  for (const OpenTensor& tensor : unit.tensors) {
    push(tensor.row, unit.facts.operation, *unit.started, time,
         {.unit = key, .bytes = tensor.bytes, .facts = unit.facts});
  }
  units_.erase(found);
}

void Recording::chunk(const ChunkFacts& chunk, ChunkStage stage, TraceTime time) {
  if (stage == ChunkStage::local_in && chunk.offset == 0) started(chunk.unit, time);
  const std::pair place{chunk.unit.set, chunk.slot};
  if (const auto former = stages_.find(place); former != stages_.end()) {
    const std::string slot = fmt::format("chunk slot {}", chunk.slot);
    push(row(RowGroup::chunks, beside_set(slot, chunk.unit.set)), name_of(former->second.stage),
         former->second.begin, time,
         {.subject = subject(chunk.unit),
          .unit = chunk.unit,
          .bytes = chunk.bytes,
          .offset = chunk.offset});
    stages_.erase(former);
  }
  const bool is_work = !name_of(stage).empty();
  if (is_work) stages_.emplace(place, OpenStage{stage, time});
}

void Recording::waited(std::string_view thread, const TensorKey& tensor, TraceTime begin,
                       TraceTime end) {
  const RowIndex subject = row(tensor);
  push(row(RowGroup::threads, thread), "wait", begin, end, {.subject = subject});
}

RowIndex Recording::subject(UnitKey unit) const {
  const auto found = units_.find(unit);
  if (found == units_.end() || found->second.tensors.empty()) return kNoRow;
  return found->second.tensors.front().row;
}

void Recording::device(const DevicePhase& phase, RowIndex subject, TraceTime begin, TraceTime end) {
  push(row(RowGroup::device, phase.row), phase.name, begin, end,
       {.subject = subject, .unit = phase.unit, .bytes = phase.bytes});
}

std::string timeline_file(std::string_view path, int rank) {
  constexpr std::string_view kRank = "%r";
  const std::string number = std::to_string(rank);
  if (path.find(kRank) == path.npos) {
    std::filesystem::path file(path);
    const std::string extension = file.extension().string();
    return file.replace_extension("." + number + extension).string();
  }
  std::string file(path);
  for (auto at = file.find(kRank); at != file.npos; at = file.find(kRank, at + number.size())) {
    file.replace(at, kRank.size(), number);
  }
  return file;
}

/// An array of the Trace Event Format. After each write() the operating system has all of it but
/// the closing bracket, which viewers do not need. Thread rule: one thread at a time.
class Trace::File {
 public:
  /// Replaces a file of that name. Throws Error(invalid_argument) where it cannot be written.
  File(std::string path, const TraceIdentity& identity)
      : path_(std::move(path)), identity_(identity) {
    const NewFile made = new_file();
    errno = 0;
    file_.open(made.descriptor_path(), std::ios::trunc);
    file_ << '[';
    const int rank = identity.rank;
    add_metadata("process_name", 0, {{"name", fmt::format("rank {} ({})", rank, identity.host)}});
    add_metadata("process_sort_index", 0, {{"sort_index", rank}});
    // ts + (wall - steady) is the wall-clock time of an event.
    const auto wall = std::chrono::system_clock::now().time_since_epoch();
    add_metadata("hora_timeline", 0,
                 {{"rank", rank},
                  {"size", identity.size},
                  {"node", identity.node},
                  {"host", identity.host},
                  {"steady_clock_us", microseconds(trace_now())},
                  {"wall_clock_us", microseconds(wall)}});
    if (file_.flush()) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the timeline of rank {} cannot be written to {}: {}", rank,
                            in_quotes(path_), reason()),
                rank);
  }

  void write(const EventBatch& batch, TraceTime time) {
    if (!problem_.empty()) return;
    errno = 0;
    for (const TraceRow& row : batch.rows) {
      const std::uint64_t thread = tid(row.group, static_cast<RowIndex>(rows_.size()));
      add_metadata("thread_name", thread, {{"name", row.name}});
      add_metadata("thread_sort_index", thread, {{"sort_index", thread}});
      rows_.push_back(row);
    }
    for (const TraceEvent& event : batch.events) add(event);
    if (batch.dropped > dropped_) {
      dropped_ = batch.dropped;
      // Over all rows: events were lost up to here.
      add({{"name", "events dropped"},
           {"cat", "hora"},
           {"ph", "i"},
           {"ts", microseconds(time)},
           {"s", "p"},
           {"pid", identity_.rank},
           {"tid", 0},
           {"args", {{"dropped_events", dropped_}}}});
    }
    flush();
  }
  void end(TraceTime time) {
    errno = 0;
    add_metadata("hora_timeline_end", 0,
                 {{"steady_clock_us", microseconds(time)}, {"dropped_events", dropped_}});
    file_ << "\n]\n";
    flush();
    file_.close();
  }

  const std::string& path() const { return path_; }
  /// Why not all could be written; empty where it could.
  const std::string& problem() const { return problem_; }

 private:
  NewFile new_file() const {
    try {
      return NewFile(path_);
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("the timeline of rank {}: {}", identity_.rank, error.what()),
                  identity_.rank);
    }
  }
  static double microseconds(std::chrono::nanoseconds time) {
    return static_cast<double>(time.count()) / 1000.0;
  }
  /// Rows of a group lie together: viewers sort by tid, too. 0 stands for the process.
  static std::uint64_t tid(RowGroup group, RowIndex index) {
    constexpr std::uint64_t kRowsOfGroup = 100'000;
    return static_cast<std::uint64_t>(group) * kRowsOfGroup + index + 1;
  }

  /// ASCII without control characters, so that a file can be looked at in a terminal.
  void add(const Json& json) {
    file_ << (std::exchange(empty_, false) ? "\n" : ",\n")
          << json.dump(-1, ' ', true, Json::error_handler_t::replace);
  }
  void add_metadata(std::string_view name, std::uint64_t thread, Json arguments) {
    add({{"name", name},
         {"ph", "M"},
         {"pid", identity_.rank},
         {"tid", thread},
         {"args", std::move(arguments)}});
  }
  void add(const TraceEvent& event) {
    constexpr std::array<std::string_view, 4> kCategories{"thread", "device", "chunk", "tensor"};
    const RowGroup group = rows_[event.row].group;
    Json json{{"name", event.name},
              {"cat", kCategories[static_cast<std::size_t>(group)]},
              {"ph", event.is_mark ? "i" : "X"},
              {"ts", microseconds(event.begin)}};
    if (event.is_mark) {
      json["s"] = "t";
    } else {
      json["dur"] = microseconds(event.duration);
    }
    json["pid"] = identity_.rank;
    json["tid"] = tid(group, event.row);
    Json arguments = arguments_of(event);
    if (!arguments.empty()) json["args"] = std::move(arguments);
    add(json);
  }
  Json arguments_of(const TraceEvent& event) const {
    Json arguments = Json::object();
    if (event.subject != kNoRow) arguments["tensor"] = rows_[event.subject].name;
    if (event.unit.number > 0) arguments["unit"] = event.unit.number;
    if (event.unit.set != kWorld) arguments["set"] = event.unit.set.number();
    if (event.bytes) arguments["bytes"] = *event.bytes;
    if (event.offset) arguments["offset"] = *event.offset;
    if (event.facts) {
      const UnitFacts& facts = *event.facts;
      arguments["type"] = facts.type;
      if (!facts.op.empty()) arguments["op"] = facts.op;
      arguments["unit_bytes"] = facts.bytes;
      arguments["unit_tensors"] = facts.tensors;
      arguments["unit_chunks"] = facts.chunks;
    }
    if (event.last_rank >= 0) {
      arguments["last_rank"] = event.last_rank;
      arguments["late_us"] = microseconds(event.late);
    }
    return arguments;
  }
  void flush() {
    if (!problem_.empty()) return;
    file_.flush();
    if (!file_) problem_ = "writing the timeline " + in_quotes(path_) + " has failed: " + reason();
  }

  std::string path_;
  TraceIdentity identity_;
  std::ofstream file_;
  std::vector<TraceRow> rows_;
  std::uint64_t dropped_ = 0;
  bool empty_ = true;
  std::string problem_;
};

Trace::Trace(const TraceOptions& options) : options_(options) {}

Trace::~Trace() {
  close();
}

TraceTime trace_now() {
  return std::chrono::steady_clock::now().time_since_epoch();
}

void Trace::start(const std::string& file, const TraceIdentity& identity) {
  const LockGuard control(control_mutex_);
  if (file_) {
    throw Error(ErrorCode::invalid_use,
                "a timeline is being written to " + in_quotes(file_->path()) +
                    " already: stop it before another is started",
                identity.rank);
  }
  file_ = std::make_unique<File>(file, identity);
  {
    const LockGuard lock(mutex_);
    recording_.emplace(options_.events, options_.rows);
    stopping_ = false;
  }
  try {
    writer_ = std::thread([this] { run_writer(); });
  } catch (const std::exception&) {
    file_.reset();
    throw;
  }
  on_.store(true);
}

void Trace::stop() {
  const LockGuard control(control_mutex_);
  if (!file_) return;
  on_.store(false);
  {
    const LockGuard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_one();
  writer_.join();
  const std::string problem = file_->problem();
  file_.reset();
  if (!problem.empty()) throw Error(ErrorCode::transport, problem);
}

void Trace::close() noexcept {
  try {
    stop();
  } catch (const std::exception& error) {
    log().warn("{}", error.what());
  }
}

void Trace::attach(TraceSource& source) {
  const LockGuard lock(sources_mutex_);
  sources_.push_back(&source);
}

void Trace::detach(TraceSource& source) noexcept {
  const LockGuard lock(sources_mutex_);
  std::erase(sources_, &source);
}

void Trace::run_writer() {
  EventBatch batch;
  for (bool stopping = false; !stopping;) {
    {
      const LockGuard lock(mutex_);
      wake_.wait_for(mutex_, options_.write_interval, [this]() HORA_REQUIRES(mutex_) {
        return stopping_ || recording_->half_full();
      });
      stopping = stopping_;
    }
    if (stopping) {
      finish_sources();
    } else {
      collect();
    }
    {
      const LockGuard lock(mutex_);
      recording_->take(batch);
      if (stopping) recording_.reset();
    }
    file_->write(batch, trace_now());
  }
  file_->end(trace_now());
}

bool Trace::collect() {
  const LockGuard lock(sources_mutex_);
  bool more = false;
  for (TraceSource* source : sources_) more |= source->collect();
  return more;
}

void Trace::finish_sources() {
  const auto limit = std::chrono::steady_clock::now() + options_.source_limit;
  while (collect() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(kSourcePause);
  }
  std::uint64_t lost = 0;
  {
    const LockGuard lock(sources_mutex_);
    for (TraceSource* source : sources_) lost += source->drop();
  }
  record([lost](Recording& recording) { recording.drop(lost); });
}

std::string this_thread_name() {
  const pid_t number = ::gettid();
  if (number == ::getpid()) return "main thread";
  std::array<char, 16> name{};  // the kernel's limit
  ::pthread_getname_np(::pthread_self(), name.data(), name.size());
  return fmt::format("thread {} {}", name.data(), number);
}

}  // namespace hora::internal
