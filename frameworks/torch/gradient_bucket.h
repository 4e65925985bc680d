/// The memory of one bucket: gradients' places, their views, and which gradients there are.
#pragma once

#include <ATen/core/Tensor.h>
#include <hora/buffer.h>
#include <hora/types.h>

#include <cstddef>
#include <memory>
#include <optional>
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
  virtual ~GradientBucket() = default;

  /// Takes the parameter's `.grad` in, which becomes the view of its place. Copies nothing where it
  /// is that already; an undefined `.grad` counts as zeros. Throws Error(invalid_argument) for a
  /// sparse gradient, and where the parameter has got another type or shape since construction.
  virtual void store(std::size_t place, const Parameter& parameter) = 0;
  /// All gradients are stored: after this, and in the order of the current stream on a device,
  /// view() holds them. `name`: for profilers.
  virtual void pack(const std::string& name) = 0;
  /// After the sum over ranks: whether any rank had this gradient. Nothing where the memory cannot
  /// be read without waiting for a device.
  virtual std::optional<bool> present_anywhere(std::size_t place) const = 0;

  /// After the sum over ranks: `.grad` becomes the view where any rank had a gradient, else
  /// undefined.
  void publish(std::size_t place, const Parameter& parameter, bool present) const;
  /// Never frees the memory: peers may go on writing to it.
  void give_up_memory() noexcept;
  /// All of it, as one tensor; its stream is the current one.
  TensorView view() const;

 protected:
  /// `parameters` in registration order, as the layout's indices count; all on one device.
  GradientBucket(const Context& context, const BucketLayout& layout,
                 const std::vector<Parameter>& parameters);

  const BucketLayout& layout() const { return layout_; }
  std::byte* data() const { return memory_->data(); }
  at::Tensor all_bytes() const;
  /// The view at `place`, once the parameter and its `.grad` have been checked as store() says.
  const at::Tensor& place_of(std::size_t place, const Parameter& parameter) const;

 private:
  BucketLayout layout_;
  std::shared_ptr<Buffer> memory_;
  std::vector<at::Tensor> views_;
};

/// Dense memory in the same order of elements.
bool same_memory_order(const at::Tensor& a, const at::Tensor& b);

std::unique_ptr<GradientBucket> make_host_bucket(const Context& context, const BucketLayout& layout,
                                                 const std::vector<Parameter>& parameters);
std::unique_ptr<GradientBucket> make_cuda_bucket(const Context& context, const BucketLayout& layout,
                                                 const std::vector<Parameter>& parameters);

}  // namespace hora
