/// The memory of one bucket: gradients' places, their views, and the presence lane.
#pragma once

#include <ATen/core/Tensor.h>
#include <hora/buffer.h>
#include <hora/types.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "frameworks/torch/bucket_assignment.h"

namespace hora {

/// A parameter whose gradient is averaged. `tensor` shares the user's parameter.
struct Parameter {
  std::string name;
  at::Tensor tensor;
};

/// Views keep the memory alive, so a `.grad` may outlive the optimizer. Places are numbered as in
/// the layout. Thread rule: one thread at a time.
class GradientBucket {
 public:
  /// `parameters` in registration order, as the layout's indices count.
  GradientBucket(const Context& context, const BucketLayout& layout,
                 const std::vector<Parameter>& parameters);

  /// Brings the parameter's `.grad` into its place, marks it present, and makes `.grad` the view.
  /// Copies nothing where `.grad` is the view already; marks it absent, and its place zero, where
  /// `.grad` is undefined. Throws Error(invalid_argument) for a sparse gradient, and where the
  /// parameter has got another type or shape since construction.
  void store(std::size_t place, const Parameter& parameter);

  /// After the sum over ranks: `.grad` becomes the view where any rank had a gradient, else
  /// undefined.
  void publish(std::size_t place, const Parameter& parameter) const;

  /// Never frees the memory: peers may go on writing to it.
  void give_up_memory() noexcept;

  /// All of it, as one tensor.
  TensorView view() const;

 private:
  void mark(std::size_t place, bool present);
  bool is_present_anywhere(std::size_t place) const;

  BucketLayout layout_;
  std::shared_ptr<Buffer> memory_;
  std::vector<at::Tensor> views_;
  std::vector<std::byte> one_;  // the bucket's type's 1
};

/// Throws Error(invalid_argument) where the parameter's type or shape is no longer that of `view`.
void check_unchanged(const Parameter& parameter, const at::Tensor& view);

}  // namespace hora
