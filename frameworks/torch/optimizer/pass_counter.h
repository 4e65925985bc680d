/// Which backward pass completes a gradient. Pure.
#pragma once

#include <cstddef>
#include <vector>

namespace hora {

/// Thread rule: one thread at a time.
class PassCounter {
 public:
  PassCounter(std::size_t gradients, int passes) : counts_(gradients, 0), passes_(passes) {}

  /// How many passes make a gradient complete, at least 1.
  void require(int passes) { passes_ = passes; }
  int required() const { return passes_; }

  /// A pass has added to the gradient: true where it was the last one it takes. One that is not
  /// counted (no_sync) never is.
  bool add(std::size_t gradient, bool counted) {
    any_ = true;
    if (!counted) return false;
    counts_[gradient] += 1;
    return counts_[gradient] == passes_;
  }
  /// Any pass since the last reset.
  bool any() const { return any_; }
  void reset() {
    counts_.assign(counts_.size(), 0);
    any_ = false;
  }

 private:
  std::vector<int> counts_;
  int passes_;
  bool any_ = false;
};

}  // namespace hora
