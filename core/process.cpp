#include "core/base/process.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace hora::internal {

std::string host_name() {
  if (const char* const given = std::getenv(kHostVariable)) return given;
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "unknown";
  return name.data();
}

std::string pid_namespace() {
  std::array<char, 64> link{};
  const ssize_t bytes = ::readlink("/proc/self/ns/pid", link.data(), link.size());
  return bytes > 0 ? std::string(link.data(), static_cast<std::size_t>(bytes)) : "unknown";
}

ProcessIdentity identity_of_process(int rank) {
  return {.rank = rank, .host = host_name(), .pid = ::getpid()};
}

bool descriptors_are_gone() noexcept {
  static const int witness = [] {
    // Away from the numbers that a program that closes one of its own twice may hit.
    constexpr int kLeast = 100;
    const int made = ::eventfd(0, EFD_CLOEXEC);
    const int moved = ::fcntl(made, F_DUPFD_CLOEXEC, kLeast);
    ::close(made);
    return moved;
  }();
  return witness >= 0 && ::fcntl(witness, F_GETFD) < 0;
}

std::string to_string(const ProcessIdentity& process) {
  std::string place;
  if (!process.host.empty()) place = "host " + process.host;
  if (process.pid > 0) place += (place.empty() ? "pid " : ", pid ") + std::to_string(process.pid);
  return "rank " + std::to_string(process.rank) + (place.empty() ? "" : " (" + place + ")");
}

namespace {

constexpr std::size_t kPage = 4096;

}  // namespace

ProcessOwner::ProcessOwner() : mark_(nullptr), process_(::getpid()) {
  void* const page =
      ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  // Since Linux 4.14.
  if (::madvise(page, kPage, MADV_WIPEONFORK) != 0) {
    ::munmap(page, kPage);
    return;
  }
  mark_ = new (page) std::atomic<bool>(true);
}

ProcessOwner::~ProcessOwner() {
  if (mark_) ::munmap(mark_, kPage);
}

bool ProcessOwner::is_this_process() const noexcept {
  return mark_ ? mark_->load(std::memory_order_relaxed) : ::getpid() == process_;
}

}  // namespace hora::internal
