/// Why the engines of a node have ended, on its shared page: published once, the same for all.
#pragma once

#include <hora/error.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/control_block/atomic.h"

namespace hora::internal {

/// All zero at first. The texts are read only once `state` says that they are whole.
struct alignas(64) FirstCauseMemory {
  enum State : std::uint32_t { kNone = 0, kPublishing = 1, kPublished = 2 };

  Atomic<std::uint32_t> state;
  std::uint32_t code;
  std::int32_t rank;
  std::uint32_t text_bytes;
  std::uint32_t tensor_bytes;
  std::array<char, 4096> text;
  std::array<char, 1024> tensor;
};

/// A rank that learns why the job ends (an error of a transport, a time limit, a damaged page)
/// publishes it here and wakes its node: every rank of the node then ends with the same error,
/// whichever cause of its own it finds later. One that dies while it publishes leaves nothing
/// behind: the others find a cause of their own. Thread rule: any thread of any rank.
class FirstCause {
 public:
  explicit FirstCause(FirstCauseMemory& memory) : memory_(memory) {}

  /// False where another cause has been published, or is being published. Longer texts than the
  /// page has room for are cut.
  bool publish(const Error& error);
  /// There is one. A load of a line that is written once.
  bool is_published() const {
    return memory_.state.load(kWakeOrder) == FirstCauseMemory::kPublished;
  }
  /// Nothing where none is published; waits for a moment where one is being published. What it says
  /// is checked: another process has written it.
  std::optional<Error> get() const;

 private:
  FirstCauseMemory& memory_;
};

}  // namespace hora::internal
