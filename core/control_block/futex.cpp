#include <hora/error.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <string>

#include "core/control_block/wakeup_flags.h"

namespace hora::internal {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

void futex_wait(const Atomic<std::uint32_t>& word, std::uint32_t expected,
                std::optional<std::chrono::nanoseconds> timeout) {
  timespec relative{};
  if (timeout) {
    const auto nanoseconds = timeout->count() > 0 ? timeout->count() : 0;
    relative.tv_sec = static_cast<time_t>(nanoseconds / 1'000'000'000);
    relative.tv_nsec = static_cast<long>(nanoseconds % 1'000'000'000);
  }
  // Not FUTEX_PRIVATE: the word lies in memory that several processes map.
  const long result =
      ::syscall(SYS_futex, &word, FUTEX_WAIT, expected, timeout ? &relative : nullptr, nullptr, 0);
  if (result == 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT) return;
  throw Error(ErrorCode::transport, std::string("futex wait failed: ") + std::strerror(errno));
}

void futex_wake(const Atomic<std::uint32_t>& word) noexcept {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace hora::internal
