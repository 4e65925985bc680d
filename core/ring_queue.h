/// A queue that uses its elements again.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace hora::internal {

/// First in, first out. An element that is popped keeps its place and what memory it owns, and
/// push() gives it out again as it was left: in the steady state nothing is allocated. `T` is
/// default-constructible and movable; references hold until the next push(). Thread rule: one
/// thread at a time.
template <class T>
class RingQueue {
 public:
  bool empty() const { return size_ == 0; }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return slots_[place(i)]; }
  const T& operator[](std::size_t i) const { return slots_[place(i)]; }
  T& front() { return slots_[begin_]; }
  const T& front() const { return slots_[begin_]; }

  /// A new last element, as an earlier one was left.
  T& push() {
    if (size_ == slots_.size()) grow();
    return slots_[place(size_++)];
  }
  void pop() {
    begin_ = place(1);
    --size_;
  }

 private:
  std::size_t place(std::size_t i) const {
    const std::size_t at = begin_ + i;
    return at < slots_.size() ? at : at - slots_.size();
  }
  void grow() {
    constexpr std::size_t kFirst = 8;
    std::vector<T> larger(slots_.empty() ? kFirst : 2 * slots_.size());
    for (std::size_t i = 0; i < slots_.size(); ++i) larger[i] = std::move(slots_[place(i)]);
    slots_ = std::move(larger);
    begin_ = 0;
  }

  std::vector<T> slots_;
  std::size_t begin_ = 0;
  std::size_t size_ = 0;
};

}  // namespace hora::internal
