#include "frameworks/torch/optimizer/state_pieces.h"

#include <ATen/Functions.h>
#include <torch/optim/adagrad.h>

#include <algorithm>
#include <memory>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>

#include "frameworks/torch/tensor_view.h"

namespace hora {
namespace {

using torch::optim::AdagradParamState;
using States = std::remove_reference_t<decltype(std::declval<torch::optim::Optimizer>().state())>;

/// Under which LibTorch keeps a parameter's state: its address, in older versions as text.
template <class Key = States::key_type>
Key key_of(const at::Tensor& parameter) {
  if constexpr (std::is_pointer_v<Key>) {
    return parameter.unsafeGetTensorImpl();
  } else {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  }
}

/// In the parameter's memory order, which a loaded one need not have.
at::Tensor in_order_of(const at::Tensor& parameter, const at::Tensor& state) {
  return in_memory_order(at::empty_like(parameter.detach()).copy_(state));
}

}  // namespace

bool can_cut_state(const torch::optim::Optimizer& optimizer) {
  return std::all_of(optimizer.state().begin(), optimizer.state().end(), [](const auto& entry) {
    const auto* state = dynamic_cast<const AdagradParamState*>(entry.second.get());
    return state != nullptr && state->step() == 0;
  });
}

void cut_state(torch::optim::Optimizer& optimizer, const at::Tensor& parameter,
               const std::vector<ParameterPiece>& pieces) {
  States& states = optimizer.state();
  const auto found = states.find(key_of(parameter));
  if (found == states.end()) return;
  const auto whole = std::move(found->second);
  states.erase(found);
  const at::Tensor sum =
      in_order_of(parameter, static_cast<const AdagradParamState&>(*whole).sum());
  for (const ParameterPiece& piece : pieces) {
    auto state = std::make_unique<AdagradParamState>();
    state->sum(sum.narrow(0, piece.begin, piece.values.numel()).clone());
    states[key_of(piece.values)] = std::move(state);
  }
}

}  // namespace hora
