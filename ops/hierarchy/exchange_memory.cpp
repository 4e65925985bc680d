#include "ops/hierarchy/exchange_memory.h"

#include <utility>

namespace hora {

std::byte* GrowingBlock::reserve(std::size_t bytes) {
  if (bytes > bytes_) {
    // First, so that both never exist at once.
    if (block_.data) memory_.release(std::exchange(block_, {}).data);
    bytes_ = 0;
    block_ = memory_.allocate(bytes);
    bytes_ = bytes;
  }
  return block_.data;
}

}  // namespace hora
