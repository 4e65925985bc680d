/// What a child that a rank forks sees of the rank's shared memory.
#pragma once

#include <cstddef>
#include <utility>

namespace hora::internal {

/// While it lives, fork() gives the child these pages as a copy of its own: it reads what the rank
/// has written, and what it writes itself reaches no rank. Pages that the child has not written to
/// go on showing what ranks write. A child made by clone() or vfork() is not covered. Move-only.
/// Thread rule: any thread.
class ForkShield {
 public:
  /// [data, data + bytes) maps the beginning of file `descriptor`, shared; both outlive it.
  ForkShield(std::byte* data, std::size_t bytes, int descriptor);
  ForkShield(ForkShield&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  ForkShield& operator=(ForkShield&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~ForkShield();

 private:
  std::byte* data_;
};

}  // namespace hora::internal
