#include "ops/shm/fork_shield.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <vector>

namespace hora::internal {
namespace {

struct SharedPages {
  std::byte* data;
  std::size_t bytes;
  int descriptor;
};

/// All of this process; its lock is held over fork(), so that the child finds a whole list.
struct Registry {
  std::mutex mutex;
  std::vector<SharedPages> pages;

  Registry() { ::pthread_atfork(lock, unlock, make_private); }
  static Registry& get() {
    static auto& registry = *new Registry;  // never destroyed: children may be forked at the end
    return registry;
  }

 private:
  static void lock() { get().mutex.lock(); }
  static void unlock() { get().mutex.unlock(); }
  static void make_private() {
    for (const SharedPages& shared : get().pages) {
      const void* const mapped = ::mmap(shared.data, shared.bytes, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_FIXED, shared.descriptor, 0);
      // Without them a child that uses them is ended; with them it would write into the rank's.
      if (mapped == MAP_FAILED) ::munmap(shared.data, shared.bytes);
    }
    get().pages.clear();
    unlock();
  }
};

}  // namespace

ForkShield::ForkShield(std::byte* data, std::size_t bytes, int descriptor) : data_(data) {
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  registry.pages.push_back({data, bytes, descriptor});
}

ForkShield::~ForkShield() {
  if (data_ == nullptr) return;
  Registry& registry = Registry::get();
  const std::lock_guard lock(registry.mutex);
  std::erase_if(registry.pages, [this](const SharedPages& shared) { return shared.data == data_; });
}

}  // namespace hora::internal
