/// Gradients that are averaged where autograd has put them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "frameworks/torch/optimizer/gradient_way.h"

namespace hora::internal {

/// Facts for gradient_way() of this dense gradient, as far as memory alone decides them.
/// `place` has the type and strides of its place. `delivered`: what autograd has added to or made
/// `.grad` of, if that is still held for the hook; else undefined.
GradientFacts facts_of_memory(const at::Tensor& gradient, const at::Tensor& place,
                              const at::Tensor& delivered);

/// By place of one bucket: keeps a gradient's memory until peers are done with it, whatever becomes
/// of `.grad`. Thread rule: one thread at a time.
class LentGradients {
 public:
  explicit LentGradients(std::size_t places) : lent_(places) {}

  void lend(std::size_t place, const at::Tensor& gradient) {
    lent_[place] = {gradient, gradient.storage()};
  }
  /// Undefined: it lies in its place in the bucket.
  const at::Tensor& at(std::size_t place) const { return lent_[place].gradient; }
  void give_back(std::size_t place) { lent_[place] = {}; }
  std::size_t bytes() const;
  void give_back_all();
  /// Never frees them: peers may still write to them.
  void give_up() noexcept;

 private:
  struct Lent {
    at::Tensor gradient;
    c10::Storage memory;  ///< its, whatever set_data() makes of the gradient
  };
  std::vector<Lent> lent_;
};

}  // namespace hora::internal
