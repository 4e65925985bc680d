/// Collectives as functions that autograd can go back through.
#pragma once

#include <torch/types.h>

#include <functional>
#include <string>
#include <vector>

namespace hora {

using Tensors = std::vector<torch::Tensor>;

/// Grad mode is on, and an input requires a gradient.
bool is_recorded(const Tensors& inputs);

/// forward(), recorded where is_recorded(inputs): then `backward` makes the inputs' gradients out
/// of the results'. A result that no loss uses has a gradient of zeros. What `backward` calls is
/// recorded in turn where a graph of it is asked for.
Tensors differentiable(const Tensors& inputs, const std::function<Tensors()>& forward,
                       std::function<Tensors(const Tensors&)> backward);

/// The options of a backward collective, whose name derives from the forward's, so that backward
/// is matched on all ranks whatever the order; unnamed stays unnamed.
template <class Options>
Options backward_options(Options options) {
  if (!options.name.empty()) options.name += ".backward";
  return options;
}

}  // namespace hora
