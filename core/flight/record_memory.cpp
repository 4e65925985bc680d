#include <fcntl.h>
#include <hora/printable.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

#include "core/flight/record_writer.h"

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
    return "it has layout " + std::to_string(version) + " instead of " +
           std::to_string(kRecordVersion) +
           ": horarun and the program have different versions of "
           "hora";
  }
  const std::int64_t pid = header.pid.load();
  const bool in_use = pid > 0 && pid != ::getpid() && ::kill(static_cast<pid_t>(pid), 0) == 0;
  return in_use ? "process " + std::to_string(pid) + " writes there" : std::string();
}

}  // namespace

tl::expected<RecordMemory, std::string> RecordMemory::create() {
  Descriptor file(::memfd_create("hora-record", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.get() < 0)
    return tl::unexpected("memfd_create failed: " + std::generic_category().message(errno));
  // Shorter memory would end a reader by SIGBUS.
  if (::ftruncate(file.get(), kRecordBytes) != 0 ||
      ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return tl::unexpected("memory of " + std::to_string(kRecordBytes) +
                          " bytes cannot be made: " + std::generic_category().message(errno));
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
    return refuse("it has " + std::to_string(status.st_size) + " bytes instead of " +
                  std::to_string(kRecordBytes));
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
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(descriptor_);
}

}  // namespace hora::internal
