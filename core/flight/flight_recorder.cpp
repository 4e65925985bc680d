#include "core/flight/flight_recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <hora/printable.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/base/log.h"
#include "core/base/text.h"

namespace hora::internal {
namespace {

constexpr auto kRelease = std::memory_order_release;

/// Why the last call of the system has failed.
std::string system_reason() {
  return std::generic_category().message(errno);
}

/// At most as many bytes as there are; the rest are 0.
template <std::size_t Words>
void store_bytes(std::array<std::atomic<std::uint64_t>, Words>& words, const void* data,
                 std::size_t size) noexcept {
  std::array<std::uint64_t, Words> bytes{};
  std::copy_n(static_cast<const std::byte*>(data), size,
              reinterpret_cast<std::byte*>(bytes.data()));
  for (std::size_t i = 0; i < Words; ++i) words[i].store(bytes[i], kRelease);
}

template <std::size_t Words>
void store_text(std::array<std::atomic<std::uint64_t>, Words>& words,
                std::string_view text) noexcept {
  const std::string_view part = fitting(text, sizeof words);
  store_bytes(words, part.data(), part.size());
}

/// Why this process may not write there; empty: it may.
std::string problem_with(const RecordHeader& header) {
  if (header.magic.load(std::memory_order_acquire) != kRecordMagic) return "it is no record";
  const std::uint32_t version = header.version.load();
  if (version != kRecordVersion) {
    return fmt::format(
        "it has layout {} instead of {}: horarun and the program have different versions of hora",
        version, kRecordVersion);
  }
  const std::int64_t pid = header.pid.load();
  const bool in_use = pid > 0 && pid != ::getpid() && ::kill(static_cast<pid_t>(pid), 0) == 0;
  return in_use ? fmt::format("process {} writes there", pid) : std::string();
}

/// Leaves out the middle of a long name: models number their layers anywhere.
void store_name(RecordWords<kRecordNameBytes>& words, std::string_view name) noexcept {
  constexpr std::string_view kGap = "...";
  constexpr std::size_t kFront = 24;
  if (name.size() <= kRecordNameBytes) return store_text(words, name);
  const std::string_view front = fitting(name, kFront);
  std::string_view back = name.substr(name.size() - (kRecordNameBytes - kFront - kGap.size()));
  while (!back.empty() && continues_character(back.front())) back.remove_prefix(1);
  std::array<char, kRecordNameBytes> bytes{};
  char* end = std::copy(front.begin(), front.end(), bytes.data());
  end = std::copy(kGap.begin(), kGap.end(), end);
  end = std::copy(back.begin(), back.end(), end);
  store_text(words, {bytes.data(), end});
}

std::uint32_t packed(const Signature& signature) noexcept {
  return static_cast<std::uint32_t>(signature.kind) |
         static_cast<std::uint32_t>(signature.op) << 8U |
         static_cast<std::uint32_t>(signature.type) << 16U |
         static_cast<std::uint32_t>(signature.device) << 24U;
}

constexpr std::string_view kOff = "off", kWatched = "watched";

std::optional<RecordMemory> memory_of(const char* variable) {
  if (variable && variable == kOff) return std::nullopt;
  if (variable && variable != kWatched) {
    auto given = RecordMemory::open(variable);
    if (given) return std::move(*given);
    log().warn("{}={}: {}; this rank keeps its record to itself", kRecordVariable, variable,
               given.error());
  }
  auto own = RecordMemory::anonymous();
  if (own) return std::move(*own);
  log().warn("there is no flight record on this rank: {}", own.error());
  return std::nullopt;
}

/// Handlers are the process's. Written before a handler that reads them is installed, and never
/// freed: a signal may be on its way to it still when it is removed.
struct Relayed {
  int signal;
  struct sigaction program = {};
  bool is_installed = false;
};
std::array<Relayed, 2> relayed = {{{SIGUSR1}, {SIGUSR2}}};
std::atomic<pid_t> relay_guard{0}, relay_owner{0};

void pass_on(int signal, siginfo_t* info, void* context) noexcept {
  const int error = errno;
  const pid_t guard = relay_guard.load();
  const bool was_sent =
      info->si_code == SI_USER || info->si_code == SI_QUEUE || info->si_code == SI_TKILL;
  // A forked child's signals are its own.
  const bool concerns_all = guard > 0 && ::getpid() == relay_owner.load();
  if (concerns_all && was_sent && info->si_pid != guard) ::kill(guard, signal);
  errno = error;
  const struct sigaction& program = relayed[signal == SIGUSR1 ? 0 : 1].program;
  if ((program.sa_flags & SA_SIGINFO) != 0) return program.sa_sigaction(signal, info, context);
  program.sa_handler(signal);
}

bool has_handler(const struct sigaction& action) noexcept {
  if ((action.sa_flags & SA_SIGINFO) != 0) return action.sa_sigaction != nullptr;
  return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

bool is_ours(const struct sigaction& action) noexcept {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == pass_on;
}

}  // namespace

bool RecordMemory::map() {
  const int flags = descriptor_ < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const memory = ::mmap(nullptr, kRecordBytes, PROT_READ | PROT_WRITE, flags, descriptor_, 0);
  if (memory == MAP_FAILED) return false;
  layout_ = static_cast<RecordLayout*>(memory);
  return true;
}

void RecordMemory::make_layout(std::int64_t guard) {
  RecordHeader& header = (new (layout_) RecordLayout())->header;
  header.rank.store(-1);
  header.version.store(kRecordVersion);
  header.guard.store(guard);
  header.magic.store(kRecordMagic, kRelease);
}

tl::expected<RecordMemory, std::string> RecordMemory::create() {
  RecordMemory memory(::memfd_create("hora-record", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int file = memory.descriptor_;
  // Shorter memory would end a reader by SIGBUS.
  if (file < 0 || ::ftruncate(file, kRecordBytes) != 0 ||
      ::fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 || !memory.map()) {
    return tl::unexpected(
        fmt::format("memory of {} bytes cannot be made: {}", kRecordBytes, system_reason()));
  }
  memory.make_layout(::getpid());
  return memory;
}

tl::expected<RecordMemory, std::string> RecordMemory::open(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    return tl::unexpected("the flight record " + in_quotes(path) + " cannot be used: " + why);
  };
  // A FIFO is not waited for.
  RecordMemory memory(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  if (memory.descriptor_ < 0 || ::fstat(memory.descriptor_, &status) != 0)
    return refuse(system_reason());
  if (!S_ISREG(status.st_mode)) return refuse("it is no file");
  if (status.st_size != static_cast<off_t>(kRecordBytes)) {
    return refuse(fmt::format("it has {} bytes instead of {}", status.st_size, kRecordBytes));
  }
  if (!memory.map()) return refuse(system_reason());
  const std::string problem = problem_with(memory.layout().header);
  if (!problem.empty()) return refuse(problem);
  ::close(std::exchange(memory.descriptor_, -1));
  return memory;
}

tl::expected<RecordMemory, std::string> RecordMemory::anonymous() {
  RecordMemory memory(-1);
  if (!memory.map()) return tl::unexpected("it cannot be mapped: " + system_reason());
  memory.make_layout(0);
  return memory;
}

RecordMemory::~RecordMemory() {
  if (layout_) ::munmap(layout_, kRecordBytes);
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string RecordMemory::path() const {
  if (descriptor_ < 0) return {};
  return fmt::format("/proc/{}/fd/{}", ::getpid(), descriptor_);
}

void RecordWriter::begin() const noexcept {
  if (!memory_) return;
  RecordHeader& header = memory_->header;
  header.state.store(static_cast<std::uint32_t>(RecordState::starting), kRelaxed);
  header.rank.store(-1, kRelaxed);
  header.begin.store(record_now().count(), kRelaxed);
  header.begin_wall.store(
      std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1), kRelaxed);
  // Also what a process that was killed has left half-written.
  for (RecordEntry& entry : memory_->entries) {
    entry.begun.store(0, kRelaxed);
    entry.written.store(0, kRelaxed);
  }
  header.next.store(0, kRelaxed);
  header.submitted_at.store(0, kRelaxed);
  header.progressed_at.store(0, kRelaxed);
  header.blocked.store(0, kRelaxed);
  header.cause_state.store(0, kRelaxed);
  header.phase_at.store(0, kRelaxed);
  store_text(header.phase, {});
  header.resumed.store(0, kRelaxed);
  header.resumable.store(0, kRelaxed);
  memory_->arrivals.sequence.store(0, kRelaxed);
  header.pid.store(::getpid(), kRelease);
}

void RecordWriter::identify(const FlightRecord& rank) const noexcept {
  if (!memory_) return;
  RecordHeader& header = memory_->header;
  store_text(header.hora_version, rank.hora_version);
  store_text(header.host, rank.host);
  header.size.store(rank.size, kRelaxed);
  header.node.store(rank.node, kRelaxed);
  header.local_rank.store(rank.local_rank, kRelaxed);
  header.rank.store(rank.rank, kRelease);
}

void RecordWriter::set_state(RecordState state) const noexcept {
  if (!memory_) return;
  std::atomic<std::uint32_t>& stored = memory_->header.state;
  // A failure stays.
  std::uint32_t before = stored.load(kRelaxed);
  while (before != static_cast<std::uint32_t>(RecordState::failed) &&
         !stored.compare_exchange_weak(before, static_cast<std::uint32_t>(state), kRelease)) {
  }
}

void RecordWriter::fail(std::string_view cause, std::uint32_t code) const noexcept {
  if (!memory_) return;
  RecordHeader& header = memory_->header;
  std::uint32_t none = 0;
  if (!header.cause_state.compare_exchange_strong(none, 1)) return;
  header.cause_code.store(code, kRelaxed);
  header.cause_at.store(record_now().count(), kRelaxed);
  store_text(header.cause, cause);
  header.cause_state.store(2, kRelease);
  header.state.store(static_cast<std::uint32_t>(RecordState::failed), kRelease);
}

void RecordWriter::note_phase(std::string_view phase) const noexcept {
  if (!memory_) return;
  memory_->header.phase_at.store(record_now().count(), kRelease);
  store_text(memory_->header.phase, phase);
}

RecordTicket RecordWriter::submitted(std::string_view name, ProcessSet set,
                                     const Signature& signature, std::uint64_t bytes,
                                     std::size_t peers, RecordTime time) const noexcept {
  if (!memory_) return kNoTicket;
  RecordHeader& header = memory_->header;
  const RecordTicket ticket = header.next.fetch_add(1, kRelaxed);
  header.submitted_at.store(time.count(), kRelaxed);
  RecordEntry& entry = memory_->entries[ticket % kRecordedCollectives];
  // A thread that was held up for as long as all other entries took still writes: not recorded.
  std::uint32_t before = entry.begun.load(kRelaxed);
  if (entry.written.load(std::memory_order_acquire) != before ||
      !entry.begun.compare_exchange_strong(before, static_cast<std::uint32_t>(ticket + 1),
                                           std::memory_order_acquire, kRelaxed)) {
    return kNoTicket;
  }
  entry.number.store(0, kRelease);
  entry.set.store(set.number(), kRelease);
  entry.peers.store(static_cast<std::uint32_t>(peers), kRelease);
  entry.what.store(packed(signature), kRelease);
  entry.outcome.store(static_cast<std::uint32_t>(RecordOutcome::open), kRelease);
  entry.bytes.store(bytes, kRelease);
  entry.submitted.store(time.count(), kRelease);
  entry.ready.store(0, kRelease);
  entry.started.store(0, kRelease);
  entry.done.store(0, kRelease);
  store_name(entry.name, name);
  entry.written.store(static_cast<std::uint32_t>(ticket + 1), kRelease);
  return ticket;
}

void RecordWriter::decided(RecordTicket ticket, std::uint64_t number,
                           RecordTime time) const noexcept {
  RecordEntry* const entry = progressed(ticket, time);
  if (!entry) return;
  entry->number.store(number, kRelease);
  entry->ready.store(time.count(), kRelease);
}

void RecordWriter::started(RecordTicket ticket, RecordTime time) const noexcept {
  RecordEntry* const entry = progressed(ticket, time);
  if (entry) entry->started.store(time.count(), kRelease);
}

void RecordWriter::finished(RecordTicket ticket, RecordOutcome outcome,
                            RecordTime time) const noexcept {
  RecordEntry* const entry = progressed(ticket, time);
  if (!entry) return;
  entry->done.store(time.count(), kRelease);
  entry->outcome.store(static_cast<std::uint32_t>(outcome), kRelease);
}

void write_arrivals(RecordArrivals& memory, RecordTime at, std::uint64_t decisions,
                    std::uint64_t steps, std::span<const RankArrivals> rows) noexcept {
  // Acquired, so that no store below comes before it; also over what a killed process has left.
  const std::uint32_t odd = memory.sequence.load(kRelaxed) | 1U;
  memory.sequence.exchange(odd, std::memory_order_acq_rel);
  memory.at.store(at.count(), kRelease);
  memory.decisions.store(decisions, kRelease);
  memory.steps.store(steps, kRelease);
  const std::size_t count = std::min(rows.size(), memory.rows.size());
  for (std::size_t i = 0; i < count; ++i) store_bytes(memory.rows[i], &rows[i], sizeof rows[i]);
  memory.count.store(static_cast<std::uint32_t>(count), kRelease);
  memory.sequence.store(odd + 1, kRelease);
}

FlightRecorder::FlightRecorder(const char* variable) : memory_(memory_of(variable)) {
  if (memory_) writer_ = RecordWriter(memory_->layout());
  if (memory_ && variable && variable == kWatched) memory_->layout().arrivals.wanted.store(1);
  writer_.begin();
}

void FlightRecorder::write_failures_to(const std::string& folder) {
  if (folder.empty() || !memory_ || guard() > 0) return;
  if (const auto made = make_record_folder(folder); !made) {
    throw Error(ErrorCode::invalid_setting, "HORA_RECORD_DIRECTORY: " + made.error());
  }
  folder_ = folder;
}

void FlightRecorder::failed(std::string_view cause, std::uint32_t code) noexcept {
  writer_.fail(cause, code);
  if (folder_.empty() || written_.exchange(true)) return;
  try {
    const auto record = read_record(memory_->layout(), record_now());
    const auto path = record ? write_record(*record, folder_) : tl::unexpected(record.error());
    if (path) {
      log().error("what this rank did last is in {}", *path);
    } else {
      log().warn("what this rank did last is lost: {}", path.error());
    }
  } catch (const std::exception&) {
    // Neither the record nor a message can be written; the failure itself is reported elsewhere.
  }
}

SignalRelay::SignalRelay(pid_t guard) noexcept {
  relay_owner.store(::getpid());
  relay_guard.store(guard);
  for (Relayed& each : relayed) {
    struct sigaction action {};
    if (::sigaction(each.signal, nullptr, &action) != 0) continue;
    // Where another handler calls the one of an earlier relay, that one is still in place.
    if (!has_handler(action) || is_ours(action)) continue;
    each.program = action;
    action.sa_sigaction = pass_on;
    action.sa_flags |= SA_SIGINFO;
    each.is_installed = ::sigaction(each.signal, &action, nullptr) == 0;
  }
}

SignalRelay::~SignalRelay() {
  relay_guard.store(0);
  for (Relayed& each : relayed) {
    struct sigaction current {};
    if (!std::exchange(each.is_installed, false)) continue;
    if (::sigaction(each.signal, nullptr, &current) == 0 && is_ours(current)) {
      ::sigaction(each.signal, &each.program, nullptr);
    }
  }
}

std::string_view name_of(RecordState state) {
  constexpr std::array<std::string_view, 5> kNames{"starting", "initialised", "in shutdown",
                                                   "shut down", "failed"};
  return kNames[static_cast<std::size_t>(state)];
}

namespace {

constexpr auto kAcquire = std::memory_order_acquire;
/// A writer is at work at each of so many looks: it has died there.
constexpr int kLooks = 100;

/// With a 0 behind it.
template <std::size_t Words>
std::array<std::uint64_t, Words + 1> load_bytes(
    const std::array<std::atomic<std::uint64_t>, Words>& words) {
  std::array<std::uint64_t, Words + 1> bytes{};
  for (std::size_t i = 0; i < Words; ++i) bytes[i] = words[i].load(kAcquire);
  return bytes;
}

/// Printable, whatever is there.
std::string text_of(const auto& words) {
  return printable(reinterpret_cast<const char*>(load_bytes(words).data()));
}

RecordTime within_record(RecordTime time) {
  return std::clamp(time, RecordTime(0), kLatestRecordTime);
}
RecordTime time_of(const std::atomic<std::int64_t>& stored) {
  return within_record(RecordTime(stored.load(kAcquire)));
}

RecordedArrivals look_at(const RecordArrivals& memory) {
  RecordedArrivals arrivals{.at = time_of(memory.at),
                            .decisions = memory.decisions.load(kAcquire),
                            .steps = memory.steps.load(kAcquire)};
  const std::size_t count = std::min<std::size_t>(memory.count.load(kAcquire), kRecordedArrivals);
  for (const auto& words : std::span(memory.rows).first(count)) {
    RankArrivals& row = arrivals.rows.emplace_back();
    std::memcpy(static_cast<void*>(&row), load_bytes(words).data(), sizeof row);
    row.rank = std::max(0, row.rank);
    row.median = within_record(row.median);
    row.p99 = within_record(row.p99);
    row.phase = std::min<PhaseIndex>(row.phase, kStepPhases - 1);
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

/// An object's fields in a file: constants are written, variables read. Keeps the first problem.
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
    const Json* const field = find(name, &Json::is_number_integer, "is no whole number");
    if (!field) return;
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
    const Json* const field = find(name, &Json::is_boolean, "is neither true nor false");
    if (field) value = field->get<bool>();
  }
  void operator()(const char* name, std::string& value) {
    const Json* const field = find(name, &Json::is_string, "is no text");
    if (field) value = printable(field->get_ref<const std::string&>(), kLongestText);
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
  /// Null, and refused, where there is none, or `is` says that it is of another type.
  const Json* find(const char* name, bool (Json::*is)() const noexcept, const char* other_type) {
    const bool is_there = object_.is_object() && object_.contains(name);
    if (is_there && (object_[name].*is)()) return &object_[name];
    refuse("{} {}", name, is_there ? other_type : "is missing");
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
  record.resumed = std::max<std::int64_t>(0, header.resumed.load(kRelaxed)) - 1;
  record.resumable = std::max<std::int64_t>(0, header.resumable.load(kRelaxed)) - 1;
  record.last_activity = std::max({record.begin, time_of(header.submitted_at),
                                   time_of(header.progressed_at), time_of(header.phase_at)});
  record.submitted = header.next.load(kAcquire);
  const auto count = std::min<std::uint64_t>({record.submitted, most, kRecordedCollectives});
  for (std::uint64_t ticket = record.submitted - count; ticket < record.submitted; ++ticket) {
    auto read = read_entry(memory.entries[ticket % kRecordedCollectives], ticket);
    if (read) {
      record.collectives.push_back(std::move(*read));
    } else {
      ++record.unreadable;
    }
  }
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
  const auto refuse = [&](const char* why) {
    const std::string reason = system_reason();
    return tl::unexpected(
        fmt::format("the folder {} cannot be {}: {}", in_quotes(folder), why, reason));
  };
  if (errno != EEXIST) return refuse("made");
  std::error_code none;
  if (!std::filesystem::is_directory(folder, none))
    return tl::unexpected(in_quotes(folder) + " is no folder");
  if (::access(folder.c_str(), W_OK | X_OK) != 0) return refuse("written to");
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
      return tl::unexpected("the file " + in_quotes(path) +
                            " cannot be written: " + system_reason());
    }
  } catch (const Error& error) {
    return tl::unexpected(std::string(error.what()));
  }
  return path;
}

}  // namespace hora::internal
