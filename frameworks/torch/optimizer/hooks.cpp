#include <hora/error.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "frameworks/torch/optimizer/optimizer.h"

namespace hora::internal {
namespace {

using torch::autograd::variable_list;

class AfterAccumulation : public torch::autograd::FunctionPostHook {
 public:
  AfterAccumulation(const GradientHooks::HookAfter& hook, std::size_t index)
      : hook_(hook), index_(index) {}
  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    static const at::Tensor none;
    hook_(index_, inputs.empty() ? none : inputs.front());
    return outputs;
  }

 private:
  const GradientHooks::HookAfter& hook_;
  std::size_t index_;
};

}  // namespace

GradientHooks::GradientHooks(const std::vector<Parameter>& parameters, Hook before, HookAfter after)
    : before_(std::move(before)), after_(std::move(after)) {
  for (const Parameter& parameter : parameters) entries_.push_back({parameter, {}, 0, 0});
  refresh();
}

GradientHooks::~GradientHooks() {
  for (HookedParameter& entry : entries_) {
    if (!entry.accumulator) continue;
    entry.accumulator->del_post_hook(entry.after_key);
    try {
      entry.parameter.tensor.remove_hook(entry.before_position);
    } catch (...) {  // only where the list of hooks was cleared, these included
    }
  }
}

void GradientHooks::refresh() {
  std::vector<std::size_t> bare;
  for (std::size_t index = 0; index < entries_.size(); ++index) {
    const HookedParameter& entry = entries_[index];
    if (!entry.parameter.tensor.requires_grad()) continue;
    if (!entry.accumulator) {
      bare.push_back(index);
    } else if (torch::autograd::impl::try_get_grad_accumulator(entry.parameter.tensor) !=
               entry.accumulator) {
      hook_accumulator(index);
    }
  }
  for (const std::size_t index : bare) {
    const Parameter& parameter = entries_[index].parameter;
    if (!hooked(parameter.tensor)) continue;
    throw Error(
        ErrorCode::invalid_use,
        "DistributedOptimizer: parameter '" + parameter.name +
            "' belongs to another DistributedOptimizer, which averages its gradient already; "
            "wrap each optimizer once, and destroy the former wrapper before another is made",
        -1, parameter.name);
  }
  for (const std::size_t index : bare) {
    // The public call, not impl::add_hook: a user's own register_hook() would clear that one.
    entries_[index].before_position = entries_[index].parameter.tensor.register_hook(
        [this, index](const at::TensorBase&) { before_(index); });
    hook_accumulator(index);
  }
}

bool GradientHooks::hooked(const at::Tensor& parameter) {
  if (!parameter.requires_grad() || !parameter.is_leaf()) return false;
  const auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  const auto& hooks = accumulator->post_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    return dynamic_cast<const AfterAccumulation*>(hook.get()) != nullptr;
  });
}

void GradientHooks::hook_accumulator(std::size_t index) {
  HookedParameter& entry = entries_[index];
  if (entry.accumulator) entry.accumulator->del_post_hook(entry.after_key);
  entry.accumulator = torch::autograd::impl::grad_accumulator(entry.parameter.tensor);
  entry.after_key =
      entry.accumulator->add_post_hook(std::make_unique<AfterAccumulation>(after_, index));
}

}  // namespace hora::internal
