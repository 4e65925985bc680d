/// Clipping by the global norm of averaged gradients: Pascanu, Mikolov, Bengio, "On the difficulty
/// of training recurrent neural networks", 2013, arXiv 1211.5063, section 3.2.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "frameworks/torch/peers.h"

namespace hora::internal {

/// Consecutive elements of one tensor of a list.
struct ElementRange {
  std::size_t tensor = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  bool operator==(const ElementRange&) const = default;
};

/// Part `part` of `parts` about equal ones of all elements of a list of tensors. Pure.
std::vector<ElementRange> part_of_elements(std::span<const std::int64_t> counts, int part,
                                           int parts);

/// Part `part` of `parts` of the tensors' elements, in pieces of one dimension without gaps, none
/// of them empty.
std::vector<at::Tensor> elements_of_part(const std::vector<at::Tensor>& tensors, int part,
                                         int parts);

/// 2-norm of all gradients together, which are the same on every rank: each rank reads a part of
/// them. Also where some ranks have joined: their parts are read by all others. Collective, and the
/// same bits everywhere. On the CPU, as the others; for a GPU: device_clip.h.
double norm_of_equal_gradients(const Peers& peers, const std::string& name,
                               const std::vector<at::Tensor>& gradients);

/// Likewise of gradients of which each rank has its own.
double norm_of_own_gradients(const Peers& peers, const std::string& name,
                             const std::vector<at::Tensor>& gradients);

/// Multiplies the gradients by max_norm / (norm + 1e-6) where that is below 1 or not a number.
void clip(const std::vector<at::Tensor>& gradients, double norm, double max_norm);

}  // namespace hora::internal
