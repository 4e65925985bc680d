/// What an optimizer of this folder keeps for each parameter, in LibTorch's form.
#pragma once

#include <torch/optim/optimizer.h>
#include <torch/types.h>

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
