/// Memory of the kernels' tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hora::internal::test {

/// Blocks of one allocation, each at `shift` elements past a 64-byte boundary.
template <class Stored>
class Blocks {
 public:
  Blocks(std::size_t blocks, std::size_t count, std::size_t shift)
      : stride_((count + shift) * sizeof(Stored) / 64 * 64 + 128),
        shift_(shift * sizeof(Stored)),
        memory_(blocks * stride_ + 64) {}
  std::byte* operator[](std::size_t block) {
    std::byte* const start = memory_.data();
    const std::size_t to_line = (64 - reinterpret_cast<std::uintptr_t>(start) % 64) % 64;
    return start + to_line + block * stride_ + shift_;
  }

 private:
  std::size_t stride_;
  std::size_t shift_;
  std::vector<std::byte> memory_;
};

}  // namespace hora::internal::test
