/// The futex of threads under the explorer: none wakes without cause, and no time passes.
#include "core/control_block/node_control_block.h"
#include "tests/support/model/explorer.h"

namespace hora::internal {

void futex_wait(const Atomic<std::uint32_t>& word, std::uint32_t expected,
                std::optional<std::chrono::nanoseconds>) {
  model::block_on(&word, word.first(), expected);
}

void futex_wake(const Atomic<std::uint32_t>& word) noexcept {
  model::wake(&word);
}

}  // namespace hora::internal
