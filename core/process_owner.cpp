#include "core/process_owner.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <new>

namespace hora {
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

}  // namespace hora
