/// Sleeping on a word that other processes change.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "core/control_block/atomic.h"

namespace hora::internal {

/// Sleeps until woken, until `timeout` has passed, or not at all when `word` no longer holds
/// `expected`. May wake without cause. Works across processes (std::atomic::wait does not).
void futex_wait(const Atomic<std::uint32_t>& word, std::uint32_t expected,
                std::optional<std::chrono::nanoseconds> timeout);

/// Wakes every sleeper on `word`.
void futex_wake(const Atomic<std::uint32_t>& word) noexcept;

}  // namespace hora::internal
