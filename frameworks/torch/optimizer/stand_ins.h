/// Stand-ins for parameters on other devices than the one on which gradients are averaged.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "frameworks/torch/optimizer/parameter_form.h"

namespace hora::internal {

/// Copies gradients between devices in the order of the current streams of both; between one and
/// the CPU the host waits. Thread rule: one thread at a time.
class StandIns {
 public:
  /// `device`: on which gradients are averaged. `parameters` outlive it.
  StandIns(const std::vector<Parameter>& parameters, const at::Device& device);

  /// The parameters, in their order. One on another device is replaced by its stand-in there, of
  /// its name, type, shape and strides, and without values.
  const std::vector<Parameter>& parameters() const { return averaged_; }

  /// Where it has one: the stand-in's `.grad` becomes what the parameter's is.
  void take(std::size_t index) const;
  /// Where it has one: the parameter's `.grad` becomes what the stand-in's is.
  void give(std::size_t index) const;

 private:
  bool stands_in(std::size_t index) const;

  const std::vector<Parameter>& parameters_;
  std::vector<Parameter> averaged_;
};

}  // namespace hora::internal
