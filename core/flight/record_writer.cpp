#include "core/flight/record_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <hora/printable.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

namespace hora::internal {
namespace {

/// Closed unless it is released.
class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }
  int release() { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_;
};

/// `descriptor` -1: memory of this process alone.
tl::expected<void*, std::string> map(int descriptor) {
  const int flags = descriptor < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const memory = ::mmap(nullptr, kRecordBytes, PROT_READ | PROT_WRITE, flags, descriptor, 0);
  if (memory == MAP_FAILED)
    return tl::unexpected("it cannot be mapped: " + std::generic_category().message(errno));
  return memory;
}

RecordLayout* make_layout(void* memory, std::int64_t guard) {
  auto* const layout = new (memory) RecordLayout();
  layout->header.rank.store(-1);
  layout->header.version.store(kRecordVersion);
  layout->header.guard.store(guard);
  layout->header.magic.store(kRecordMagic, std::memory_order_release);
  return layout;
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

constexpr auto kRelease = std::memory_order_release;

std::int64_t nanoseconds(clockid_t clock) noexcept {
  timespec time{};
  ::clock_gettime(clock, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
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
  std::copy(back.begin(), back.end(), end);
  store_bytes(words, bytes);
}

std::uint32_t packed(const Signature& signature) noexcept {
  return static_cast<std::uint32_t>(signature.kind) |
         static_cast<std::uint32_t>(signature.op) << 8U |
         static_cast<std::uint32_t>(signature.type) << 16U |
         static_cast<std::uint32_t>(signature.device) << 24U;
}

}  // namespace

tl::expected<RecordMemory, std::string> RecordMemory::create() {
  Descriptor file(::memfd_create("hora-record", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0)
    return tl::unexpected("memfd_create failed: " + std::generic_category().message(errno));
  // Shorter memory would end a reader by SIGBUS.
  if (::ftruncate(file.get(), kRecordBytes) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return tl::unexpected(fmt::format("memory of {} bytes cannot be made: {}", kRecordBytes,
                                      std::generic_category().message(errno)));
  }
  const auto memory = map(file.get());
  if (!memory) return tl::unexpected(memory.error());
  return RecordMemory(make_layout(*memory, ::getpid()), file.release());
}

tl::expected<RecordMemory, std::string> RecordMemory::open(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    return tl::unexpected("the flight record " + in_quotes(path) + " cannot be used: " + why);
  };
  // A FIFO is not waited for.
  const Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) return refuse(std::generic_category().message(errno));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) return refuse(std::generic_category().message(errno));
  if (!S_ISREG(status.st_mode)) return refuse("it is no file");
  if (status.st_size != static_cast<off_t>(kRecordBytes)) {
    return refuse(fmt::format("it has {} bytes instead of {}", status.st_size, kRecordBytes));
  }
  const auto memory = map(file.get());
  if (!memory) return refuse(memory.error());
  RecordMemory record(static_cast<RecordLayout*>(*memory), -1);
  const std::string problem = problem_with(record.layout().header);
  if (!problem.empty()) return refuse(problem);
  return record;
}

tl::expected<RecordMemory, std::string> RecordMemory::anonymous() {
  const auto memory = map(-1);
  if (!memory) return tl::unexpected(memory.error());
  return RecordMemory(make_layout(*memory, 0), -1);
}

RecordMemory::RecordMemory(RecordMemory&& other) noexcept
    : layout_(std::exchange(other.layout_, nullptr)),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

RecordMemory& RecordMemory::operator=(RecordMemory&& other) noexcept {
  std::swap(layout_, other.layout_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

RecordMemory::~RecordMemory() {
  if (layout_) ::munmap(layout_, kRecordBytes);
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::string RecordMemory::path() const {
  if (descriptor_ < 0) return {};
  return fmt::format("/proc/{}/fd/{}", ::getpid(), descriptor_);
}

std::string_view name_of(RecordState state) noexcept {
  constexpr std::array<std::string_view, 5> kNames{"starting", "initialised", "in shutdown",
                                                   "shut down", "failed"};
  const auto number = static_cast<std::size_t>(state);
  return number < kNames.size() ? kNames[number] : "unknown";
}

void RecordWriter::begin() const noexcept {
  if (!memory_) return;
  RecordHeader& header = memory_->header;
  header.state.store(static_cast<std::uint32_t>(RecordState::starting), kRelaxed);
  header.rank.store(-1, kRelaxed);
  header.begin.store(nanoseconds(CLOCK_MONOTONIC), kRelaxed);
  header.begin_wall.store(nanoseconds(CLOCK_REALTIME), kRelaxed);
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
  header.phase_sequence.store(0, kRelaxed);
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
  header.cause_at.store(nanoseconds(CLOCK_MONOTONIC), kRelaxed);
  store_text(header.cause, cause);
  header.cause_state.store(2, kRelease);
  header.state.store(static_cast<std::uint32_t>(RecordState::failed), kRelease);
}

void RecordWriter::note_phase(std::string_view phase) const noexcept {
  if (!memory_) return;
  RecordHeader& header = memory_->header;
  std::uint32_t sequence = header.phase_sequence.load(kRelaxed);
  if (sequence % 2 == 1 || !header.phase_sequence.compare_exchange_strong(
                               sequence, sequence + 1, std::memory_order_acquire, kRelaxed)) {
    return;
  }
  header.phase_at.store(nanoseconds(CLOCK_MONOTONIC), kRelease);
  store_text(header.phase, phase);
  header.phase_sequence.store(sequence + 2, kRelease);
}

RecordTicket RecordWriter::submitted(std::string_view name, ProcessSet set,
                                     const Signature& signature, std::uint64_t bytes,
                                     std::size_t peers, Time time) const noexcept {
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

void RecordWriter::decided(RecordTicket ticket, std::uint64_t number, Time time) const noexcept {
  RecordEntry* const entry = entry_of(ticket);
  if (!entry) return;
  entry->number.store(number, kRelease);
  entry->ready.store(time.count(), kRelease);
  memory_->header.progressed_at.store(time.count(), kRelaxed);
}

void RecordWriter::started(RecordTicket ticket, Time time) const noexcept {
  RecordEntry* const entry = entry_of(ticket);
  if (!entry) return;
  entry->started.store(time.count(), kRelease);
  memory_->header.progressed_at.store(time.count(), kRelaxed);
}

void RecordWriter::finished(RecordTicket ticket, RecordOutcome outcome, Time time) const noexcept {
  RecordEntry* const entry = entry_of(ticket);
  if (!entry) return;
  entry->done.store(time.count(), kRelease);
  entry->outcome.store(static_cast<std::uint32_t>(outcome), kRelease);
  memory_->header.progressed_at.store(time.count(), kRelaxed);
}

}  // namespace hora::internal
