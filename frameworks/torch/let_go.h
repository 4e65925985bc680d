/// Destroys what has collectives under way, without waiting for them.
#pragma once

#include <memory>
#include <utility>

namespace hora {

/// Handles and buffers wait for nothing while an exception unwinds the stack (handle.h, buffer.h):
/// so one does. What peers may still write to stays allocated.
template <class T>
void let_go(std::unique_ptr<T> object) noexcept {
  struct LettingGo {};
  try {
    const std::unique_ptr<T> unwound = std::move(object);
    throw LettingGo{};
  } catch (const LettingGo&) {
  }
}

}  // namespace hora
