/// What an optimizer of this folder keeps for each parameter, in LibTorch's form.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

namespace vision {

/// The parameter's state in the optimizer, value-initialised where it has none yet.
template <class State>
State& state_of(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  auto& states = optimizer.state();
  using Key = typename std::remove_reference_t<decltype(states)>::key_type;
  Key key{};
  if constexpr (std::is_pointer_v<Key>) {
    key = parameter.unsafeGetTensorImpl();
  } else {  // before LibTorch 2.1
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    key = text.str();
  }
  auto& state = states[key];
  if (state == nullptr) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

/// An optimizer's step(): the closure with gradients on, then `update(options, weight, gradient)`
/// of each parameter that has a gradient, without.
template <class Options, class Update>
torch::Tensor step_parameters(torch::optim::Optimizer& optimizer,
                              const torch::optim::Optimizer::LossClosure& closure,
                              const Update& update) {
  const torch::NoGradGuard no_grad;
  torch::Tensor loss;
  if (closure) {
    const torch::AutoGradMode with_grad(true);
    loss = closure();
  }
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    for (torch::Tensor& weight : group.params()) {
      const torch::Tensor& gradient = weight.grad();
      if (gradient.defined()) update(options, weight, gradient);
    }
  }
  return loss;
}

/// A layer's norm is that of the whole tensor. DistributedOptimizer's shard_state gives an
/// optimizer pieces of parameters, which require no gradient though they have one. Throws
/// std::invalid_argument for these.
inline void check_whole(const torch::Tensor& parameter, const char* optimizer) {
  if (parameter.requires_grad()) return;
  throw std::invalid_argument(std::string(optimizer) +
                              " takes the norms of whole layers, and got a piece of one (a "
                              "parameter that requires no gradient); use it without shard_state");
}

/// `ratio`, and 1 where the norm of the layer's weight or of its update is 0. Scalars on the
/// parameter's device: the host does not wait for them.
inline torch::Tensor trust_ratio(const torch::Tensor& weight_norm, const torch::Tensor& update_norm,
                                 const torch::Tensor& ratio) {
  return torch::where(weight_norm.gt(0).logical_and(update_norm.gt(0)), ratio,
                      torch::ones_like(ratio));
}

}  // namespace vision
