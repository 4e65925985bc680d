/// Why the engines of a node have ended, on its shared page: told once, the same for all.
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
  enum State : std::uint32_t { kNone = 0, kBeingTold = 1, kTold = 2 };

  Atomic<std::uint32_t> state;
  std::uint32_t code;
  std::int32_t rank;
  std::uint32_t text_bytes;
  std::uint32_t tensor_bytes;
  std::array<char, 4096> text;
  std::array<char, 1024> tensor;
};

/// A rank that learns why the job ends (an error of a transport, a time limit, a damaged page)
/// tells it here and wakes its node: every rank of the node then ends with the same error,
/// whichever cause of its own it finds later. One that dies while it tells leaves nothing behind:
/// the others find a cause of their own. Thread rule: any thread of any rank.
class FirstCause {
 public:
  explicit FirstCause(FirstCauseMemory& memory) : memory_(memory) {}

  /// False where another cause has been told, or is being told. Longer texts than the page has room
  /// for are cut.
  bool tell(const Error& error);
  /// There is one. A load of a line that is written once.
  bool is_told() const { return memory_.state.load(kWakeOrder) == FirstCauseMemory::kTold; }
  /// Nothing where none is told; waits for a moment where it is being told. What it says is
  /// checked: another process has written it.
  std::optional<Error> get() const;

 private:
  FirstCauseMemory& memory_;
};

}  // namespace hora::internal
