/// LibTorch's hooks before and after the accumulation of gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/variable.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "frameworks/torch/optimizer/parameter_form.h"

namespace hora::internal {

/// Calls `before(i)` when autograd is about to add to parameter i's `.grad`, and `after(i, ..)`
/// when it has, with the gradient that it has added, which it is about to drop: once a backward,
/// also for a parameter used twice; never for one that backward does not reach, nor from
/// autograd::grad(). What they throw comes out of backward(). The destructor takes the hooks away.
/// A parameter has such hooks once: two would feed one gradient to two averages. Thread rule: one
/// thread at a time, not during backward().
class GradientHooks {
 public:
  using Hook = std::function<void(std::size_t)>;
  using HookAfter = std::function<void(std::size_t, const at::Tensor& delivered)>;
  /// Throws as refresh().
  GradientHooks(const std::vector<Parameter>& parameters, Hook before, HookAfter after);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  /// LibTorch takes no hook on a frozen parameter: this hooks those that require a gradient by now,
  /// and again those whose accumulator is another, as after a change of type and back. Throws
  /// Error(invalid_use) naming one that has another GradientHooks's; none is hooked anew then.
  void refresh();

  /// Whether some GradientHooks has its hooks on it.
  static bool hooked(const at::Tensor& parameter);

 private:
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));
  struct HookedParameter {
    Parameter parameter;
    // Nothing else keeps it alive between two forward passes, and the hook is destroyed with it.
    Accumulator accumulator;
    std::uintptr_t after_key = 0;
    unsigned before_position = 0;
  };
  void add(std::size_t index);
  void hook_accumulator(std::size_t index);
  void remove(HookedParameter& entry) noexcept;

  Hook before_;
  HookAfter after_;
  std::vector<HookedParameter> entries_;
};

}  // namespace hora::internal
