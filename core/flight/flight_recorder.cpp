#include "core/flight/flight_recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <hora/printable.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <new>
#include <system_error>

#include "core/base/log.h"
#include "core/base/text.h"
#include "core/flight/record_reader.h"

namespace hora::internal {
namespace {

constexpr auto kRelease = std::memory_order_release;

/// Why the last call of the system has failed.
std::string system_reason() {
  return std::generic_category().message(errno);
}

template <std::size_t Words>
void store_text(std::array<std::atomic<std::uint64_t>, Words>& words,
                std::string_view text) noexcept {
  std::array<std::uint64_t, Words> bytes{};
  const std::string_view part = fitting(text, sizeof bytes);
  part.copy(reinterpret_cast<char*>(bytes.data()), part.size());
  for (std::size_t i = 0; i < Words; ++i) words[i].store(bytes[i], kRelease);
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
void store_name(RecordText<kRecordNameBytes>& words, std::string_view name) noexcept {
  constexpr std::string_view kGap = "...";
  constexpr std::size_t kFront = 24;
  if (name.size() <= kRecordNameBytes) return store_text(words, name);
  const std::string_view front = fitting(name, kFront);
  std::string_view back = name.substr(name.size() - (kRecordNameBytes - kFront - kGap.size()));
  while (!back.empty() && (static_cast<unsigned char>(back.front()) & 0xC0U) == 0x80U) {
    back.remove_prefix(1);
  }
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

bool names(const char* variable, std::string_view value) {
  return variable && value == variable;
}

std::optional<RecordMemory> memory_of(const char* variable) {
  if (names(variable, "off")) return std::nullopt;
  if (variable && !names(variable, "watched")) {
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

constexpr std::array<int, 2> kRelayed = {SIGUSR1, SIGUSR2};

/// Handlers are the process's. Written before a handler that reads them is installed, and never
/// freed: a signal may be on its way to it still when it is removed.
struct Relay {
  std::atomic<pid_t> guard{0};
  std::atomic<pid_t> owner{0};
  std::array<struct sigaction, kRelayed.size()> program = {};
  std::array<bool, kRelayed.size()> installed = {};
};
Relay relay;

std::size_t index_of(int signal) noexcept {
  return signal == kRelayed[0] ? 0 : 1;
}

bool was_sent(const siginfo_t* info) noexcept {
  return info->si_code == SI_USER || info->si_code == SI_QUEUE || info->si_code == SI_TKILL;
}

void call(const struct sigaction& action, int signal, siginfo_t* info, void* context) noexcept {
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    action.sa_sigaction(signal, info, context);
  } else {
    action.sa_handler(signal);
  }
}

void pass_on(int signal, siginfo_t* info, void* context) noexcept {
  const int error = errno;
  const pid_t guard = relay.guard.load();
  // A forked child's signals are its own.
  const bool concerns_all = guard > 0 && ::getpid() == relay.owner.load();
  if (concerns_all && was_sent(info) && info->si_pid != guard) ::kill(guard, signal);
  errno = error;
  call(relay.program[index_of(signal)], signal, info, context);
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
  memory_->arrivals.sequence.store(0, kRelaxed);
  header.pid.store(::getpid(), kRelease);
}

void RecordWriter::identify(const RecordIdentity& identity) const noexcept {
  if (!memory_) return;
  RecordHeader& header = memory_->header;
  store_text(header.hora_version, identity.hora_version);
  store_text(header.host, identity.host);
  header.size.store(identity.size, kRelaxed);
  header.node.store(identity.node, kRelaxed);
  header.local_rank.store(identity.local_rank, kRelaxed);
  header.rank.store(identity.rank, kRelease);
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
  // A thread that was held up here for as long as all other entries took still writes: this one
  // goes unrecorded.
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
  RecordEntry* const entry = entry_of(ticket);
  if (!entry) return;
  entry->number.store(number, kRelease);
  entry->ready.store(time.count(), kRelease);
  memory_->header.progressed_at.store(time.count(), kRelaxed);
}

void RecordWriter::started(RecordTicket ticket, RecordTime time) const noexcept {
  RecordEntry* const entry = entry_of(ticket);
  if (!entry) return;
  entry->started.store(time.count(), kRelease);
  memory_->header.progressed_at.store(time.count(), kRelaxed);
}

void RecordWriter::finished(RecordTicket ticket, RecordOutcome outcome,
                            RecordTime time) const noexcept {
  RecordEntry* const entry = entry_of(ticket);
  if (!entry) return;
  entry->done.store(time.count(), kRelease);
  entry->outcome.store(static_cast<std::uint32_t>(outcome), kRelease);
  memory_->header.progressed_at.store(time.count(), kRelaxed);
}

void write_arrivals(RecordArrivals& memory, RecordTime at, std::uint64_t decisions,
                    std::uint64_t steps, std::span<const RankArrivals> rows) noexcept {
  const std::uint32_t sequence = memory.sequence.load(kRelaxed);
  // Acquired, so that no store below comes before it; also over what a killed process has left.
  const std::uint32_t odd = sequence | 1U;
  memory.sequence.exchange(odd, std::memory_order_acq_rel);
  memory.at.store(at.count(), kRelease);
  memory.decisions.store(decisions, kRelease);
  memory.steps.store(steps, kRelease);
  const std::size_t count = std::min(rows.size(), memory.rows.size());
  for (std::size_t i = 0; i < count; ++i) {
    RecordArrivalsRow& row = memory.rows[i];
    const RankArrivals& from = rows[i];
    row.rank.store(from.rank, kRelease);
    row.phase.store(from.phase, kRelease);
    row.last.store(from.last, kRelease);
    row.median.store(from.median.count(), kRelease);
    row.p99.store(from.p99.count(), kRelease);
  }
  memory.count.store(static_cast<std::uint32_t>(count), kRelease);
  memory.sequence.store(odd + 1, kRelease);
}

FlightRecorder::FlightRecorder(const char* variable)
    : memory_(memory_of(variable)), counts_arrivals_(!names(variable, "off")) {
  if (memory_) writer_ = RecordWriter(memory_->layout());
  if (memory_ && names(variable, "watched")) memory_->layout().arrivals.wanted.store(1);
  writer_.begin();
}

std::int64_t FlightRecorder::guard() const noexcept {
  return memory_ ? std::max<std::int64_t>(0, memory_->layout().header.guard.load()) : 0;
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
  relay.owner.store(::getpid());
  relay.guard.store(guard);
  for (std::size_t i = 0; i < kRelayed.size(); ++i) {
    struct sigaction current {};
    if (::sigaction(kRelayed[i], nullptr, &current) != 0) continue;
    // Where another handler calls the one of an earlier relay, that one is still in place.
    if (!has_handler(current) || is_ours(current)) continue;
    relay.program[i] = current;
    struct sigaction action = current;
    action.sa_sigaction = pass_on;
    action.sa_flags |= SA_SIGINFO;
    relay.installed[i] = ::sigaction(kRelayed[i], &action, nullptr) == 0;
  }
}

SignalRelay::~SignalRelay() {
  relay.guard.store(0);
  for (std::size_t i = 0; i < kRelayed.size(); ++i) {
    struct sigaction current {};
    if (!relay.installed[i] || ::sigaction(kRelayed[i], nullptr, &current) != 0) continue;
    if (is_ours(current)) ::sigaction(kRelayed[i], &relay.program[i], nullptr);
    relay.installed[i] = false;
  }
}

}  // namespace hora::internal
