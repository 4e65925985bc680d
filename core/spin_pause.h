/// What a loop that polls memory does between two looks.
#pragma once

namespace hora::internal {

/// Tells the CPU that this thread spins.
inline void spin_pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace hora::internal
